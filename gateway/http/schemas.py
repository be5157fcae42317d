"""The wire models: they validate a request's plain fields and describe requests and answers in the OpenAPI document.

`input` and the answer's floats never pass through pydantic: they are checked and written by code that knows their size.
Called by routes.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from gateway.errors import EmptyInput, GatewayError, InvalidDimensions, InvalidRequest, TooManyInputs
from gateway.http.json_body import load_object
from gateway.types import Inputs, Truncate

EncodingFormat = Literal["float", "base64"]

_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_INPUT_SCHEMA = {
    "description": (
        "What to embed: one text, a list of texts, one input as a list of token ids, or a list of such lists. Token ids"
        " are those of the served model's own tokenizer, without special tokens."
    ),
    "oneOf": [
        {**_TEXT, "title": "text"},
        {"type": "array", "items": _TEXT, "minItems": 1, "title": "texts"},
        {**_IDS, "title": "token ids of one input"},
        {"type": "array", "items": _IDS, "minItems": 1, "title": "token ids of several inputs"},
    ],
}


class EmbeddingsRequest(BaseModel):
    """The body of an embeddings request. Unknown fields are ignored; null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="ignore")

    input: Annotated[Any, WithJsonSchema(_INPUT_SCHEMA)]
    model: str = Field(min_length=1, description="A served model or an alias of one.")
    encoding_format: EncodingFormat | None = Field(
        None, description="How vectors are written: `float` (default), or `base64` of little-endian float32."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Cut vectors to this many dimensions and normalise them again; default: the model's."
    )
    user: Annotated[Any, WithJsonSchema({})] = Field(None, description="Ignored, whatever it is.")
    truncate: Literal["NONE", "END", "START"] | None = Field(
        None,
        description="What happens to an input that is too long: refuse it (`NONE`, default), or cut its end or start.",
    )
    input_type: str | None = Field(
        None, description="Which of the model's prompts is put before each input: `query`, `passage` or `document`."
    )


class Embedding(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int = Field(description="Place of the input in the request.")
    embedding: list[float] | str = Field(description="The vector, or with `base64` its little-endian float32 bytes.")


class Usage(BaseModel):
    """Tokens embedded, special tokens included, padding not."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """The vectors of all inputs, in input order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time at which its engine was built, seconds.")
    owned_by: str = "embedding-gateway"


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """The process runs, or the models are ready."""

    status: Literal["live", "ready"]


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(description="The request field at fault, with the first bad index.")
    code: str | None


class ErrorResponse(BaseModel):
    """Every error, on every path."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """A valid request, as far as it can be checked without the model.

    Attributes:
        inputs: N texts or N lists of ints, none of them empty.
        input_type: which prompt is wanted, or None.
    """

    model: str
    inputs: Inputs
    encoding_format: EncodingFormat
    dimensions: int | None
    truncate: Truncate
    input_type: str | None


def parse_embeddings_request(body: bytes | bytearray, *, max_inputs: int, max_tokens: int) -> EmbeddingsCall:
    """Parse and check the body of an embeddings request.

    Raises:
        InvalidRequest: the body breaks a rule; `param` names the field and the first bad index.
    """
    fields = load_object(body, max_inputs=max_inputs, max_tokens=max_tokens)
    try:
        request = EmbeddingsRequest.model_validate(fields)
    except ValidationError as error:
        raise _translate(error) from None
    return EmbeddingsCall(
        model=request.model,
        inputs=read_inputs(request.input, max_inputs),
        encoding_format=request.encoding_format or "float",
        dimensions=request.dimensions,
        truncate=Truncate(request.truncate or "NONE"),
        input_type=request.input_type,
    )


def read_inputs(value: object, max_inputs: int) -> Inputs:
    """Check the value of `input` and return its N inputs; a flat list of ints is one.

    Raises:
        EmptyInput: it, or one of its items, is empty.
        TooManyInputs: it has more than `max_inputs` items. Told before the items are looked at.
        InvalidRequest: it, or one of its items, has the wrong type.
    """
    if isinstance(value, str):
        value = [value]
        if value == [""]:
            raise EmptyInput("`input` is an empty string.", param="input")
    if not isinstance(value, list):
        raise InvalidRequest("`input` must be a string, a list of strings, or token ids.", param="input")
    if not value:
        raise EmptyInput("`input` is an empty list.", param="input")
    if type(value[0]) is int:
        _check_ids(value)
        return [value]
    if len(value) > max_inputs:
        message = f"`input` has {len(value)} items; one request may have {max_inputs}. Send fewer at a time."
        raise TooManyInputs(message, param="input")
    return _check_list(value)


def _check_list(inputs: list[Any]) -> Inputs:
    kind = type(inputs[0])
    for index, value in enumerate(inputs):
        if type(value) is not kind or kind not in (str, list):
            message = f"Item {index} of `input` has the wrong type: all must be strings, or all lists of token ids."
            raise InvalidRequest(message, param=f"input[{index}]")
        if not value:
            raise EmptyInput(f"Item {index} of `input` is empty.", param=f"input[{index}]")
        if kind is list:
            _check_ids(value, index)
    return cast("Inputs", inputs)


def _check_ids(ids: list[Any], input_index: int | None = None) -> None:
    """Raise InvalidRequest unless all are ints; `input_index` is their place in a list of lists."""
    if set(map(type, ids)) == {int}:
        return
    index = next(index for index, value in enumerate(ids) if type(value) is not int)
    place = f"input[{index}]" if input_index is None else f"input[{input_index}][{index}]"
    message = f"Token ids must be integers; `{place}` is not."
    raise InvalidRequest(message, param=f"input[{index if input_index is None else input_index}]")


def _translate(error: ValidationError) -> GatewayError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = str(first["loc"][0])
    kind = InvalidDimensions if param == "dimensions" else InvalidRequest
    return kind(f"`{param}`: {first['msg']}.", param=param)
