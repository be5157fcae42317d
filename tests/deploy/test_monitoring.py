"""Prometheus' own checks of our rules, and a real Prometheus on a real gateway and Triton that answers each query."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.embedded import EmbeddedTriton
from tests.deploy.load import traffic
from tests.deploy.monitoring import (
    PROMETHEUS_FOLDER,
    RULES,
    Prometheus,
    all_queries,
    program,
    read_panels,
    read_rules,
    run_prometheus,
)
from tests.gateway_process import GatewayProcess, run_gateway

RULE_TESTS = PROMETHEUS_FOLDER / "tests" / "alerts_test.yml"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["check", "config", PROMETHEUS_FOLDER / "prometheus.yml"], id="config"),
        pytest.param(["check", "rules", *RULES], id="rules"),
        pytest.param(["test", "rules", RULE_TESTS], id="rule-tests"),
    ],
)
def test_promtool_finds_nothing(arguments: list[str]) -> None:
    result = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_is_tested_both_ways() -> None:
    healthy, *others = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    alerts = {rule["alert"] for rule in read_rules("alert")}
    assert {each["alertname"] for each in healthy["alert_rule_test"]} == alerts
    raised = {each["alertname"] for test in others for each in test["alert_rule_test"] if each.get("exp_alerts")}
    assert raised == alerts


def test_names_of_recorded_series_say_what_they_are() -> None:
    for rule in read_rules("record"):
        assert re.fullmatch(r"[a-z_]+:(gateway|nv)_[a-z_]+:[a-z0-9_]+", rule["record"])


def test_the_dashboard_is_whole() -> None:
    panels = read_panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.fixture(scope="module")
def several(
    embedded_triton: EmbeddedTriton, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway before a name of endpoints, for the series that are there only where there may be several."""
    log = tmp_path_factory.mktemp("several") / "gateway.log"
    url = f"dns:///localhost:{embedded_triton.grpc_url.rpartition(':')[2]}"
    with run_gateway(log, model_repository=model_repository, triton_url=url) as process:
        yield process


@pytest.fixture(scope="module")
def prometheus(
    several: GatewayProcess, embedded_triton: EmbeddedTriton, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """Reads the gateway and Triton under load, for long enough that each series has moved."""
    targets = {
        "gateway": several.url.removeprefix("http://"),
        "triton": embedded_triton.metrics_url.removeprefix("http://").removesuffix("/metrics"),
    }
    with run_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus, traffic(several.url):
        deadline = time.monotonic() + 45
        while time.monotonic() < deadline and not all(
            prometheus.values(query.expression) for query in all_queries() if not query.needs_gpu
        ):
            time.sleep(1)
        yield prometheus


def test_every_expression_returns_data(prometheus: Prometheus) -> None:
    queries = [query for query in all_queries() if not query.needs_gpu]
    assert len(queries) > 60
    empty = [query for query in queries if not prometheus.values(query.expression)]
    assert not empty


def test_gpu_expressions_are_those_without_data(prometheus: Prometheus) -> None:
    queries = [query for query in all_queries() if query.needs_gpu]
    assert {query.place for query in queries} == {
        "gpu:nv_gpu_memory_used:ratio", "GpuMemoryNearlyFull", "Utilization", "Memory", "Power",
    }  # fmt: skip
    assert not any(prometheus.values(query.expression) for query in queries)


def test_rules_are_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert len(rules) == len(read_rules("record")) + len(read_rules("alert"))


def test_figures_agree_with_each_other(prometheus: Prometheus) -> None:
    (padding,) = prometheus.values("model:gateway_padding:ratio_rate5m")
    assert 0 < padding < 0.6
    (rows,) = prometheus.values("model:gateway_batch_rows:mean_5m")
    (triton_rows,) = prometheus.values("model:nv_inference_rows:mean_5m")
    assert rows > 1
    assert triton_rows == pytest.approx(rows, rel=0.5)
    (slots,) = prometheus.values("sum(gateway_slots)")
    (busy,) = prometheus.values("model:gateway_slots_busy:ratio_avg5m")
    assert slots == 2
    assert 0 < busy <= 1
    (p50,) = prometheus.values("job:gateway_request_duration_seconds:p50_5m")
    (p99,) = prometheus.values("job:gateway_request_duration_seconds:p99_5m")
    assert 0 < p50 <= p99
    (age,) = prometheus.values("model:gateway_queue_age_seconds:max")
    assert 0 <= age < 30
    assert prometheus.values('sum(gateway_request_errors_total{code="model_not_found"})') > [0.0]
    assert prometheus.values('sum(gateway_requests_total{status="499"})') > [0.0]
