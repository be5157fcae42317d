"""Everything that can go wrong, as one tree; each class carries its HTTP status, OpenAI error type and code.

    GatewayError
        InvalidRequest            400
            EmptyInput
            TooManyInputs
            TokenLimitExceeded
            ContextLengthExceeded
            InvalidDimensions
            InvalidTokenIds
        InvalidApiKey             401
        NotFound                  404
            ModelNotFound
        MethodNotAllowed          405
        RequestTimeout            408   the body came too slowly
        RequestTooLarge           413
        UnsupportedMediaType      415
        Overloaded                429
        InternalError             500
            EngineBadOutput
            EngineRejected
        EngineUnavailable         503
            EngineSilent                  Triton took a question and did not answer it
        EngineTimeout             504
    StartupError                  ends the process, with one line

Messages are written for the caller: never the user's text, a path, or the text of a foreign exception.
"""

from enum import StrEnum
from typing import ClassVar


class GatewayError(Exception):
    """An error with an answer of its own.

    Args:
        message: one or two sentences for the caller.
        param: the request field at fault, with the first bad index (`input[3]`), or None.
        retry_after_s: whole seconds after which a retry is worth it, or None.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(GatewayError):
    """The request breaks a rule of the contract."""

    status = 400
    type = "invalid_request_error"


class EmptyInput(InvalidRequest):
    """An input has nothing to embed."""

    code = "empty_input"


class TooManyInputs(InvalidRequest):
    """The list is longer than one request may be."""

    code = "too_many_inputs"


class TokenLimitExceeded(InvalidRequest):
    """All inputs together have more tokens than one request may have."""

    code = "max_tokens_per_request"


class ContextLengthExceeded(InvalidRequest):
    """An input has more tokens than the model takes, and truncation was not asked for."""

    code = "context_length_exceeded"


class InvalidDimensions(InvalidRequest):
    """`dimensions` is not between 1 and the model's."""

    code = "invalid_dimensions"


class InvalidTokenIds(InvalidRequest):
    """A list of ints is not a list of this model's token ids."""

    code = "invalid_token_ids"


class InvalidApiKey(GatewayError):
    """No key, or a wrong one."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class NotFound(GatewayError):
    """No such route."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No such model."""

    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """The route exists, for another method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeout(GatewayError):
    """The body did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class RequestTooLarge(GatewayError):
    """The body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMediaType(GatewayError):
    """The body is not JSON by its content type."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class ExceededLimit(StrEnum):
    """What was full, as metrics and the log name it."""

    QUEUED_INPUTS = "queued_inputs"
    QUEUED_TOKENS = "queued_tokens"
    QUEUE_TIME = "queue_time"
    BODIES = "bodies"
    TRITON_QUEUE = "triton_queue"


class Overloaded(GatewayError):
    """No room, here or in Triton's queue; nothing was done.

    Args:
        message, param, retry_after_s: as of every error.
        limit: which one the request would have exceeded.
    """

    status = 429
    type = "rate_limit_error"
    code = "overloaded"

    def __init__(
        self, message: str, limit: ExceededLimit, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.limit = limit


class InternalError(GatewayError):
    """Our fault."""

    code = "internal_error"


class EngineBadOutput(InternalError):
    """The engine answered with a wrong shape or dtype, NaN or infinity."""

    code = "engine_bad_output"


class EngineRejected(InternalError):
    """The engine refused what the gateway sent."""

    code = "engine_rejected"


class EngineUnavailable(GatewayError):
    """Triton cannot be reached, or has the model not ready."""

    status = 503
    code = "engine_unavailable"


class EngineSilent(EngineUnavailable):
    """Triton can be reached but does not answer."""


class EngineTimeout(GatewayError):
    """The request's deadline passed."""

    status = 504
    code = "engine_timeout"


class StartupError(Exception):
    """The gateway cannot start; the message is one line that says what to do."""
