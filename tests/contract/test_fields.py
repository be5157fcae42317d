"""The other fields of a request."""

import base64
from typing import Any

import numpy as np
import pytest

from tests.contract.caller import ALIAS, Caller, read_error
from tests.integration.triton_figures import DEMO_MODEL
from tests.stub_gateway import StubGateway

NULLS = ["encoding_format", "dimensions", "user", "truncate", "input_type"]


@pytest.mark.parametrize("names", [[name] for name in NULLS] + [NULLS], ids="+".join)
def test_null_means_absent(caller: Caller, names: list[str]) -> None:
    assert caller.ask("tree", **dict.fromkeys(names)).json() == caller.ask("tree").json()


@pytest.mark.parametrize("fields", [{"user": "someone"}, {"user": 5}, {"unknown": {"input": [None]}}, {"stream": True}])
def test_user_and_unknown_fields_are_ignored(caller: Caller, fields: dict[str, Any]) -> None:
    assert caller.ask("tree", **fields).json() == caller.ask("tree").json()


@pytest.mark.parametrize("value", ["md5", "ubyte", "", "FLOAT", 1, ["float"], False])
def test_another_encoding_format(caller: Caller, value: Any) -> None:
    assert caller.refused("tree", encoding_format=value)["param"] == "encoding_format"


def test_base64_is_float32_little_endian(caller: Caller) -> None:
    rows = caller.ask(["tree", "river"], encoding_format="base64").json()["data"]
    assert [len(row["embedding"]) for row in rows] == [384 * 4 * 4 // 3] * 2
    vectors = np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])
    np.testing.assert_array_equal(vectors, caller.embed(["tree", "river"], encoding_format="float"))


@pytest.mark.parametrize("dimensions", [384, 256, 2, 1])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_dimensions_are_cut_and_normalised_again(caller: Caller, dimensions: int, encoding_format: str) -> None:
    whole = caller.embed("tree")[:, :dimensions]
    cut = caller.embed("tree", dimensions=dimensions, encoding_format=encoding_format)
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole), atol=1e-6)


@pytest.mark.parametrize("value", [385, 768, 1536, 0, -1, "384", 384.5, 384.0, True, False, [384], 10**30])
def test_dimensions_that_are_none(caller: Caller, value: Any) -> None:
    error = caller.refused("tree", dimensions=value)
    assert (error["param"], error["code"]) == ("dimensions", "invalid_dimensions")


@pytest.mark.parametrize("value", ["query", "passage", "document", "", "x" * 10_000, 5, True])
def test_a_model_without_prompts_has_no_input_types(caller: Caller, value: Any) -> None:
    assert caller.refused("tree", input_type=value)["param"] == "input_type"


@pytest.mark.parametrize(
    ("input_type", "prompt"), [("query", "query: "), ("passage", "passage: "), ("document", "passage: "), (None, "")]
)
def test_input_types_are_the_models_prompts(
    stub: StubGateway, stub_caller: Caller, input_type: str | None, prompt: str
) -> None:
    texts = ["tree", "a river and a house"]
    vectors, tokens = stub_caller.embed_counting(texts, input_type=input_type)
    expected = np.stack([stub.vector(prompt + text) for text in texts])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert tokens == sum(len(stub.tokenizer.encode(prompt + text).ids) for text in texts)


def test_another_input_type_names_those_of_the_model(stub_caller: Caller) -> None:
    assert "`passage` or `query`" in stub_caller.refused("tree", input_type="code")["message"]


@pytest.mark.parametrize("model", [DEMO_MODEL, ALIAS])
def test_a_model_by_its_name_or_alias(keyed: Caller, model: str) -> None:
    response = keyed.ask("tree", model=model)
    assert response.status_code == 200
    assert response.json()["model"] == DEMO_MODEL
    assert keyed.client.get(f"/v1/models/{model}").json()["id"] == DEMO_MODEL


@pytest.mark.parametrize("model", [DEMO_MODEL.upper(), "text-embedding-ada-002", "m" * 10_000, "../../etc", "\ud83d"])
def test_another_model(caller: Caller, model: str) -> None:
    response = caller.ask("tree", model=model)
    assert response.status_code == 404
    error = read_error(response)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert DEMO_MODEL in error["message"]
    assert model[:100] not in caller.client.get("/metrics").text


@pytest.mark.parametrize("model", ["", None, 5, True, [DEMO_MODEL]])
def test_a_model_that_is_no_name(caller: Caller, model: Any) -> None:
    assert caller.refused("tree", model=model)["param"] == "model"
