"""One budget a request: over tokenizing, waiting and all engine calls."""

import pytest

from tests.gateway_process import fail_to_start
from tests.reliability.callers import ask, sample, wait_until
from tests.stub_gateway import StubGateway

HEADER = "x-request-timeout-s"


def test_a_caller_may_ask_for_less(stub_gateway: StubGateway) -> None:
    stub_gateway.triton.delay_s = 20
    answer = ask(stub_gateway.gateway.url, headers={HEADER: "0.7"})
    assert (answer.status, answer.code) == (504, "engine_timeout")
    assert 0.6 < answer.took_s < 1.7
    wait_until(lambda: stub_gateway.triton.cancelled >= 1, 2)  # the call's deadline is the request's


def test_the_budget_is_over_all_batches(stub_gateway: StubGateway) -> None:
    url, triton = stub_gateway.gateway.url, stub_gateway.triton
    triton.delay_s = 0.4
    answer = ask(url, ["tree"] * 600, headers={HEADER: "1"})  # ten batches on two instances
    assert (answer.status, answer.took_s < 2) == (504, True)
    wait_until(lambda: sample(url, "queued_inputs") == sample(url, "busy_slots") == 0, 2)
    assert len(triton.requests) <= 8  # what was too late never reached the engine


def test_not_more_than_the_gateways_own(stub_gateway: StubGateway) -> None:
    assert ask(stub_gateway.gateway.url, headers={HEADER: "1e300"}).status == 200
    assert ask(stub_gateway.gateway.url, headers={HEADER: "inf"}).status == 200


@pytest.mark.parametrize("wish", ["0", "-1", "nan", "soon", ""])
def test_nonsense_is_refused(stub_gateway: StubGateway, wish: str) -> None:
    answer = ask(stub_gateway.gateway.url, headers={HEADER: wish})
    assert answer.status == 400
    assert HEADER in answer.document["error"]["message"]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e12", "soon"])
def test_nonsense_in_the_settings_stops_the_start(value: str) -> None:
    code, output = fail_to_start(request_timeout_s=value)
    assert code == 2
    assert "GATEWAY_REQUEST_TIMEOUT_S" in output
