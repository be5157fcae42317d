import math
import time

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import ExceededLimit
from gateway.metrics import STAGES, Metrics
from gateway.types import EmbeddingResult, Timings

RESULT = EmbeddingResult(np.zeros((3, 2), np.float32), 7, 1, Timings(0.1, 0.2, 0.3, 0.4))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"gateway_{name}", labels)


def test_every_series_of_a_model_is_there_at_zero() -> None:
    text = Metrics(["m"]).render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text) if family.samples}
    labelled = [family for family in families.values() if "model" in family.samples[0].labels]
    counted = [family for family in labelled if not family.name.endswith("_created")]
    assert len(counted) == 15
    assert families.pop("gateway_queue_oldest_timestamp_seconds").samples[0].value == math.inf
    assert not any(sample.value for family in counted if family.name in families for sample in family.samples)
    assert {sample.labels["status"] for sample in families["gateway_requests"].samples} > {"200", "429", "499", "503"}
    assert "overloaded" in {sample.labels["code"] for sample in families["gateway_request_errors"].samples}
    assert families["gateway_build_info"].samples[0].value == 1


def test_an_answered_request() -> None:
    metrics = Metrics(["m"])
    metrics.embedded("m", RESULT, 0.5)
    assert value(metrics, "inputs_total", model="m") == 3
    assert value(metrics, "truncated_inputs_total", model="m") == 1
    sums = [value(metrics, "stage_duration_seconds_sum", model="m", stage=stage) for stage in STAGES]
    assert sums == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_batch() -> None:
    metrics = Metrics(["m"])
    metrics.batch("m", rows=4, real_tokens=40, padded_tokens=64)
    assert value(metrics, "batch_rows_sum", model="m") == 4
    assert value(metrics, "tokens_total", model="m", kind="real") == 40
    assert value(metrics, "tokens_total", model="m", kind="padding") == 24


def test_requests_in_flight_and_done() -> None:
    metrics = Metrics()
    with metrics.request("/v1/embeddings") as outcome:
        assert value(metrics, "requests_in_flight") == 1
        outcome.status = 200
    assert value(metrics, "requests_in_flight") == 0
    assert value(metrics, "requests_total", route="/v1/embeddings", status="200") == 1
    assert value(metrics, "request_duration_seconds_count", route="/v1/embeddings") == 1


def test_a_request_whose_caller_went_away_is_no_error_of_ours() -> None:
    metrics = Metrics(["m"])

    def answer() -> None:
        with metrics.request("/v1/embeddings"):
            raise ConnectionError

    with pytest.raises(ConnectionError):
        answer()
    assert value(metrics, "requests_total", route="/v1/embeddings", status="499") == 1
    assert value(metrics, "requests_in_flight") == 0


def test_two_apps_share_nothing() -> None:
    first, second = Metrics(["m"]), Metrics(["m"])
    first.cancelled("m")
    assert value(first, "cancelled_requests_total", model="m") == 1
    assert value(second, "cancelled_requests_total", model="m") == 0


def test_errors_by_code() -> None:
    metrics = Metrics()
    with metrics.request("/v1/embeddings") as outcome:
        outcome.status, outcome.error = 429, "overloaded"
    assert value(metrics, "request_errors_total", code="overloaded") == 1
    assert value(metrics, "request_errors_total", code="internal_error") == 0


def test_refusals_by_limit() -> None:
    metrics = Metrics()
    with metrics.request("/v1/embeddings") as outcome:
        outcome.status, outcome.error, outcome.limit = 429, "overloaded", ExceededLimit.BODIES
    counts = {limit: value(metrics, "refused_requests_total", limit=limit) for limit in ExceededLimit}
    assert counts == {limit: float(limit is ExceededLimit.BODIES) for limit in ExceededLimit}


def test_what_waits() -> None:
    metrics = Metrics(["m"])
    metrics.queue("m", inputs=3, tokens=30, expected_s=0.5, oldest=time.perf_counter() - 2, busy_slots=1)
    age_s = time.time() - (value(metrics, "queue_oldest_timestamp_seconds", model="m") or 0)
    assert age_s == pytest.approx(2, abs=0.5)
    assert value(metrics, "queue_expected_seconds", model="m") == 0.5
    metrics.queue("m", inputs=0, tokens=0, expected_s=0, oldest=None, busy_slots=0)
    assert value(metrics, "queue_oldest_timestamp_seconds", model="m") == math.inf


def test_endpoints_that_come_and_go() -> None:
    metrics = Metrics(["m"])
    metrics.endpoint_up("m", "a:1", True)
    assert value(metrics, "triton_endpoint_calls_total", model="m", endpoint="a:1") == 0
    metrics.endpoint_call("m", "a:1")
    metrics.endpoint_lost_call("m", "a:1")
    names = ("up", "calls_total", "lost_calls_total")
    assert [value(metrics, f"triton_endpoint_{name}", model="m", endpoint="a:1") for name in names] == [1, 1, 1]
    metrics.forget_endpoint("m", "a:1")
    assert "a:1" not in metrics.render().decode()


def test_shared_memory() -> None:
    metrics = Metrics(["m"])
    metrics.shared_memory("m", 4096)
    assert value(metrics, "shared_memory_bytes", model="m") == 4096


def test_how_much_may_run() -> None:
    metrics = Metrics(["m"])
    metrics.slots("m", 4)
    assert value(metrics, "slots", model="m") == 4
