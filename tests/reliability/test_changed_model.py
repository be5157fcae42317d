"""A model that is unloaded, or replaced by another one, behind the gateway's back."""

import copy

import httpx

from tests.reliability.callers import ask, is_live, is_ready, sample, wait_until
from tests.stub_gateway import StubGateway, answer
from tests.stub_triton import Arrays


def reason(url: str) -> str:
    return httpx.get(f"{url}/health/ready").text


def test_unloaded(stub_gateway: StubGateway) -> None:
    url = stub_gateway.gateway.url
    stub_gateway.triton.ready = False
    wait_until(lambda: ask(url).status == 503, 3)
    assert "has not loaded the model" in reason(url)
    assert sample(url, "model_ready") == 0
    assert is_live(url)
    stub_gateway.triton.ready = True
    assert wait_until(lambda: ask(url).status == 200, 5) < 2


def test_replaced_by_one_of_another_shape(stub_gateway: StubGateway) -> None:
    url, triton = stub_gateway.gateway.url, stub_gateway.triton
    config = triton.config
    triton.config = copy.deepcopy(config)
    triton.config["max_batch_size"] = 4
    wait_until(lambda: ask(url).status == 503, 3)
    assert "max_batch_size 4 instead of 32: restart the gateway" in reason(url)
    del triton.config["output"]
    wait_until(lambda: "outputs are []" in reason(url), 3)
    triton.config = config
    wait_until(lambda: ask(url).status == 200, 5)


def test_replaced_by_one_with_other_vectors_while_away(stub_gateway: StubGateway) -> None:
    url, triton = stub_gateway.gateway.url, stub_gateway.triton

    def other(inputs: Arrays) -> Arrays:
        return {"last_hidden_state": answer(inputs)["last_hidden_state"][:, :, ::-1]}

    triton.ready = False
    wait_until(lambda: not is_ready(url) and ask(url).status == 503, 3)
    triton.answer = other
    triton.ready = True
    wait_until(lambda: "vectors differ from its manifest's" in reason(url), 5)
    assert ask(url).status == 503
    triton.answer = answer
    wait_until(lambda: ask(url).status == 200, 5)
