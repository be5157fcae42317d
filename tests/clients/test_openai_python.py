"""OpenAI's client for Python, sync and async: what it gets, raises and tries again."""

import json
import time

import grpc
import httpx
import numpy as np
import openai
import pytest

from tests.contract.caller import KEY, Caller
from tests.gateway_process import GatewayProcess
from tests.integration.triton_figures import DEMO_MODEL
from tests.stub_gateway import DOWN, FULL_QUEUE, StubGateway
from tests.stub_triton import StubTriton


def client_of(url: str, **options: object) -> openai.OpenAI:
    options = {"api_key": "unused", "max_retries": 0, **options}
    return openai.OpenAI(base_url=f"{url}/v1", **options)  # type: ignore[arg-type]


def test_it_asks_for_base64_and_hands_out_floats(gateway: GatewayProcess, caller: Caller) -> None:
    sent: list[dict[str, object]] = []
    hooks = {"request": [lambda request: sent.append(json.loads(request.content))]}
    texts = ["tree", "a river and a house"]
    with client_of(gateway.url, http_client=httpx.Client(event_hooks=hooks)) as client:
        default = client.embeddings.create(model=DEMO_MODEL, input=texts)
        floats = client.embeddings.create(model=DEMO_MODEL, input=texts, encoding_format="float")
        cut = client.embeddings.create(model=DEMO_MODEL, input=texts, dimensions=8)
    assert [body.get("encoding_format") for body in sent] == ["base64", "float", "base64"]
    for answer in (default, floats):
        vectors = np.array([row.embedding for row in answer.data], np.float32)
        np.testing.assert_array_equal(vectors, caller.embed(texts))
    assert [len(row.embedding) for row in cut.data] == [8, 8]
    assert default.usage.prompt_tokens == default.usage.total_tokens == 10


def test_what_it_shows_of_an_answer(gateway: GatewayProcess) -> None:
    with client_of(gateway.url, default_headers={"x-request-id": "request-7"}) as client:
        model = client.models.list().data[0]
        assert client.models.retrieve(model.id) == model
        raw = client.embeddings.with_raw_response.create(
            model=model.id, input="river " * 300, extra_body={"truncate": "END"}
        )
    assert (model.id, model.object) == (DEMO_MODEL, "model")
    assert raw.headers["x-truncated-inputs"] == "1"
    assert raw.request_id == "request-7"
    assert raw.parse().usage.prompt_tokens == 256


async def test_async(gateway: GatewayProcess, caller: Caller) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused") as client:
        answer = await client.embeddings.create(model=DEMO_MODEL, input=["tree"])
        with pytest.raises(openai.BadRequestError, match="Item 1 of `input` is empty"):
            await client.embeddings.create(model=DEMO_MODEL, input=["a", ""])
    np.testing.assert_array_equal(np.array([answer.data[0].embedding], np.float32), caller.embed("tree"))


def test_error_classes_and_messages(keyed: Caller) -> None:
    with client_of(keyed.url, api_key=KEY) as client:
        assert client.embeddings.create(model=DEMO_MODEL, input="tree").data
        with pytest.raises(openai.BadRequestError, match="takes at most 256") as too_long:
            client.embeddings.create(model=DEMO_MODEL, input=["tree", "river " * 300])
        with pytest.raises(openai.NotFoundError, match="Served here: all-MiniLM-L6-v2") as unknown:
            client.embeddings.create(model="text-embedding-ada-002", input="tree")
        with pytest.raises(openai.NotFoundError, match="no such path"):
            client.completions.create(model=DEMO_MODEL, prompt="tree")
        with pytest.raises(openai.APIStatusError, match="longer than 1000000 bytes") as too_large:
            client.embeddings.create(model=DEMO_MODEL, input="x" * 1_000_000)
        assert too_large.value.status_code == 413
    error = too_long.value
    assert (error.code, error.param, error.type) == (
        "context_length_exceeded", "input[1]", "invalid_request_error"
    )  # fmt: skip
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert error.request_id


@pytest.mark.parametrize("key", ["wrong", "the-right-key2"])
def test_a_wrong_key(keyed: Caller, key: str) -> None:
    with client_of(keyed.url, api_key=key) as client:
        for ask in (client.models.list, lambda: client.embeddings.create(model=DEMO_MODEL, input="tree")):
            with pytest.raises(openai.AuthenticationError, match="key is not right") as caught:
                ask()
            assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [(FULL_QUEUE, openai.RateLimitError, "queue is full"), (DOWN, openai.InternalServerError, "Triton")],
)
def test_without_retries_it_raises(
    broken: StubGateway, refusal: tuple[grpc.StatusCode, str], kind: type[openai.APIStatusError], message: str
) -> None:
    broken.triton.status = refusal
    with client_of(broken.gateway.url) as client, pytest.raises(kind, match=message) as caught:
        client.embeddings.create(model=DEMO_MODEL, input="tree")
    assert int(caught.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(("refusal", "status"), [(FULL_QUEUE, 429), (DOWN, 503)])
def test_it_tries_again_after_the_seconds_that_we_say(
    broken: StubGateway, refusal: tuple[grpc.StatusCode, str], status: int
) -> None:
    triton: StubTriton = broken.triton
    triton.status = refusal
    answers: list[tuple[int, float]] = []

    def note(response: httpx.Response) -> None:
        answers.append((response.status_code, time.monotonic()))
        if len(answers) == 2:
            triton.status = None

    client = client_of(broken.gateway.url, max_retries=5, http_client=httpx.Client(event_hooks={"response": [note]}))
    with client:
        answer = client.embeddings.create(model=DEMO_MODEL, input="tree")
    np.testing.assert_allclose(np.array(answer.data[0].embedding), broken.vector("tree"), atol=1e-6)
    statuses = [status for status, _ in answers]
    assert statuses[:2] == [status] * 2
    assert statuses[-1] == 200
    # By itself it would wait half a second at most before its first retry.
    assert answers[1][1] - answers[0][1] >= 0.99
