"""Spans of a real gateway and of the real Triton behind it, taken by a receiver that stands in for a collector."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.embedded import EmbeddedTriton
from gateway.embedded.server import server_command
from tests.gateway_process import ROOT, GatewayProcess, fail_to_start, free_port, gateway_environment, run_gateway
from tests.integration.triton_figures import DEMO_MODEL
from tests.otlp_receiver import OtlpReceiver, Span, run_otlp_receiver
from tests.reliability.callers import wait_until

KEY = "a-key-of-the-test"
SECRET = "xylophone"
STAGES = ("tokenize", "queue", "infer", "pool", "render")
SERVER = "POST /v1/embeddings"
CALL = "engine call"


@contextmanager
def otel(**variables: object) -> Iterator[None]:
    """Have these OTEL_* variables and no others, for what is started in the block; spans are sent soon."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            patch.delenv(name)
        for name, value in {"bsp_schedule_delay": 100, **variables}.items():
            patch.setenv(f"OTEL_{name.upper()}", str(value))
        yield


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with run_otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced_triton_url(
    receiver: OtlpReceiver, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The real Triton, tracing those requests that bring a trace along."""
    settings = {
        "mode": "opentelemetry",
        "opentelemetry,url": f"{receiver.url}/v1/traces",
        "opentelemetry,bsp_schedule_delay": 100,
        "level": "TIMESTAMPS",
        "rate": 0,
    }
    options = [f"--trace-config={name}={value}" for name, value in settings.items()]
    log = tmp_path_factory.mktemp("triton") / "triton.log"
    triton = EmbeddedTriton(model_repository, grpc_port=0, http_port=0, metrics_port=0, log_file=log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.embedded.server.server_command", lambda *arguments: server_command(*arguments) + options)
        triton.start()
    try:
        triton.wait_ready(60)
        yield triton.grpc_url
    finally:
        triton.stop()


@pytest.fixture(scope="module")
def gateway(
    receiver: OtlpReceiver, traced_triton_url: str, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    settings: dict[str, Any] = {"model_repository": model_repository, "triton_url": traced_triton_url, "api_keys": KEY}
    with otel(exporter_otlp_endpoint=receiver.url), run_gateway(log, **settings) as gateway:
        yield gateway


def ask(url: str, input_: Any, trace_id: str | None = None, *, key: str = KEY, flags: str = "01") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "x-request-id": "request-7"}
    if trace_id:
        headers |= {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-{flags}", "tracestate": "vendor=opaque"}
    return httpx.post(f"{url}/v1/embeddings", json={"model": DEMO_MODEL, "input": input_}, headers=headers, timeout=60)


def new_trace_id() -> str:
    return uuid.uuid4().hex


def by_name(spans: list[Span], trace_id: str) -> dict[str, Span]:
    return {span.name: span for span in spans if span.trace_id == trace_id}


def wait_for_trace(receiver: OtlpReceiver, trace_id: str, *names: str) -> dict[str, Span]:
    receiver.wait_for(lambda spans: set(names) <= set(by_name(spans, trace_id)))
    return by_name(receiver.spans, trace_id)


def test_a_request_is_one_tree_from_its_caller_to_triton(receiver: OtlpReceiver, gateway: GatewayProcess) -> None:
    trace_id = new_trace_id()
    assert ask(gateway.url, [f"{SECRET} one", "two", "three"], trace_id).status_code == 200
    spans = wait_for_trace(receiver, trace_id, SERVER, CALL, *STAGES, "InferRequest")
    server, call, triton = spans[SERVER], spans[CALL], spans["InferRequest"]
    assert (server.kind, server.parent_id, server.trace_state) == ("server", "00f067aa0ba902b7", "vendor=opaque")
    assert {spans[stage].parent_id for stage in STAGES} == {server.span_id}
    assert (call.kind, call.parent_id, call.links) == ("client", server.span_id, [server.span_id])
    assert spans["infer"].links == [call.span_id]
    assert triton.parent_id == call.span_id
    # One after the other, and each within what it belongs to.
    moments = [server.started, *(at for stage in STAGES for at in (spans[stage].started, spans[stage].ended))]
    assert [*moments, server.ended] == sorted([*moments, server.ended])
    assert (call.started, call.ended) == (spans["infer"].started, spans["infer"].ended)
    # Triton ends its span when it has tidied up: that may be after its answer is here.
    assert call.started < triton.started < call.ended
    assert not any(span.is_error for span in spans.values())


def test_what_spans_say_and_what_they_do_not(receiver: OtlpReceiver, gateway: GatewayProcess) -> None:
    trace_id = new_trace_id()
    tokens = ask(gateway.url, [f"{SECRET} one", "two"], trace_id).json()["usage"]["prompt_tokens"]
    spans = wait_for_trace(receiver, trace_id, SERVER, CALL)
    assert spans[SERVER].attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "gen_ai.operation.name": "embeddings",
        "gen_ai.request.model": DEMO_MODEL,
        "gen_ai.usage.input_tokens": tokens,
        "gateway.inputs": 2,
        "gateway.request_id": "request-7",
    }
    assert spans[CALL].attributes == {
        "gen_ai.request.model": DEMO_MODEL, "gateway.batch.rows": 2, "gateway.batch.sequence_length": 16,
    }  # fmt: skip
    assert spans[SERVER].resource["service.name"] == "embedding-gateway"
    for body in receiver.bodies:
        assert SECRET.encode() not in body
        assert KEY.encode() not in body


def test_the_log_has_the_trace_and_the_stages(receiver: OtlpReceiver, gateway: GatewayProcess) -> None:
    trace_id = new_trace_id()
    ask(gateway.url, "one", trace_id)
    spans = wait_for_trace(receiver, trace_id, SERVER, *STAGES)
    (line,) = [line for line in map(orjson.loads, gateway.log.read_bytes().splitlines()) if trace_id in str(line)]
    took_ms = {stage: (spans[stage].ended - spans[stage].started) / 1e6 for stage in STAGES}
    rounding_ms = 0.006
    for stage in ("tokenize", "pool", "render"):
        assert line[f"{stage}_ms"] == pytest.approx(took_ms[stage], abs=rounding_ms)
    # These two meet where the call's span begins, within what the scheduler measures.
    assert 0 <= line["queue_ms"] <= took_ms["queue"] + rounding_ms
    assert took_ms["infer"] - rounding_ms <= line["infer_ms"] < line["duration_ms"]


def test_requests_that_share_a_call_are_all_linked_to_it(receiver: OtlpReceiver, gateway: GatewayProcess) -> None:
    trace_ids = [new_trace_id() for _ in range(32)]
    with ThreadPoolExecutor(len(trace_ids)) as threads:
        list(threads.map(lambda trace_id: ask(gateway.url, "one short text", trace_id), trace_ids))
    receiver.wait_for(lambda spans: sum(span.name == SERVER and span.trace_id in trace_ids for span in spans) == 32)
    spans = [span for span in receiver.spans if span.trace_id in trace_ids]
    calls = {span.span_id: span for span in spans if span.name == CALL}
    assert max(len(call.links) for call in calls.values()) > 1
    assert all(call.parent_id == call.links[0] for call in calls.values())
    assert sum(call.attributes["gateway.batch.rows"] for call in calls.values()) == 32
    linked = [(request, call.span_id) for call in calls.values() for request in call.links]
    assert sorted(linked) == sorted(
        (span.parent_id, call) for span in spans if span.name == "infer" for call in span.links
    )
    assert len(linked) == 32


def test_a_request_of_many_calls_has_each_stage_once(receiver: OtlpReceiver, gateway: GatewayProcess) -> None:
    trace_id = new_trace_id()
    assert ask(gateway.url, ["a text"] * 100, trace_id).status_code == 200
    wait_for_trace(receiver, trace_id, SERVER)
    spans = [span for span in receiver.spans if span.trace_id == trace_id]
    calls = [span for span in spans if span.name == CALL]
    assert len(calls) >= 4
    assert sorted(span.name for span in spans if span.name in STAGES) == sorted(STAGES)
    infer = by_name(spans, trace_id)["infer"]
    assert set(infer.links) == {call.span_id for call in calls}
    assert infer.started == min(call.started for call in calls)
    assert infer.ended == max(call.ended for call in calls)


@pytest.mark.parametrize(
    ("input_", "key", "status", "code"),
    [
        pytest.param("one", "wrong", 401, "invalid_api_key", id="no-key"),
        pytest.param([f"{SECRET} " * 500], KEY, 400, "context_length_exceeded", id="too-long"),
    ],
)
def test_an_error_has_its_code(
    receiver: OtlpReceiver, gateway: GatewayProcess, input_: Any, key: str, status: int, code: str
) -> None:
    trace_id = new_trace_id()
    assert ask(gateway.url, input_, trace_id, key=key).status_code == status
    server = wait_for_trace(receiver, trace_id, SERVER)[SERVER]
    assert (server.attributes["http.response.status_code"], server.attributes["error.type"]) == (status, code)
    assert not server.is_error  # the caller's, not the server's
    assert CALL not in by_name(receiver.spans, trace_id)


def test_only_requests_of_callers_that_are_sampled(receiver: OtlpReceiver, gateway: GatewayProcess) -> None:
    unsampled, last = new_trace_id(), new_trace_id()
    for path in ("health/live", "health/ready", "metrics", f"{SECRET}/path"):
        httpx.get(f"{gateway.url}/{path}")
    assert ask(gateway.url, "one", unsampled, flags="00").status_code == 200
    ask(gateway.url, "one", last)
    wait_for_trace(receiver, last, SERVER)
    assert not by_name(receiver.spans, unsampled)
    gets = [span for span in receiver.spans if span.name.startswith("GET")]
    # Of the path that does not exist, nothing but that.
    assert [(span.name, span.attributes["error.type"]) for span in gets] == [("GET", "not_found")]
    assert SECRET.encode() not in b"".join(receiver.bodies)
    # The framework sends nothing of its own, neither metrics nor logs.
    assert set(receiver.paths) == {"/v1/traces"}
    assert {span.name for span in receiver.spans if span.trace_id == last} >= {SERVER, CALL}


@pytest.mark.parametrize(
    ("variables", "is_imported"),
    [
        pytest.param({}, False, id="no-endpoint"),
        pytest.param({"exporter_otlp_endpoint": "", "sdk_disabled": "true"}, False, id="disabled"),
        pytest.param({"exporter_otlp_endpoint": "", "traces_sampler": "always_off"}, True, id="on"),
    ],
)
def test_the_sdk_is_imported_only_where_tracing_is_on(
    receiver: OtlpReceiver,
    model_repository: Path,
    triton_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    is_imported: bool,
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # each import becomes a line of the log
    trace_id = new_trace_id()
    variables = {name: value or receiver.url for name, value in variables.items()}
    with (
        otel(**variables),
        run_gateway(tmp_path / "log", model_repository=model_repository, triton_url=triton_url) as gateway,
    ):
        assert ask(gateway.url, "one", trace_id).status_code == 200
    imported = {line.rpartition("|")[2].strip() for line in gateway.log.read_text().splitlines()}
    assert "gateway.server" in imported
    assert ("opentelemetry.sdk.trace" in imported) is is_imported
    assert not by_name(receiver.spans, trace_id)


@pytest.mark.parametrize("collector", ["away", "hanging"])
def test_a_collector_that_does_not_answer_harms_nobody(
    model_repository: Path, triton_url: str, tmp_path: Path, collector: str
) -> None:
    with run_otlp_receiver() as receiver:
        receiver.hang.set()
        url = receiver.url if collector == "hanging" else f"http://127.0.0.1:{free_port()}"
        with (
            otel(exporter_otlp_endpoint=url, bsp_max_queue_size=20, bsp_max_export_batch_size=10),
            run_gateway(tmp_path / "log", model_repository=model_repository, triton_url=triton_url) as gateway,
        ):
            for _ in range(30):  # many times what the queue holds
                assert ask(gateway.url, "one").status_code == 200
        assert gateway.process.returncode == 0
    told = [
        line for line in map(orjson.loads, gateway.log.read_bytes().splitlines()) if "opentelemetry" in line["logger"]
    ]
    assert len(told) == 1


def test_spans_of_each_worker_arrive_even_at_the_end(
    receiver: OtlpReceiver, model_repository: Path, triton_url: str, tmp_path: Path
) -> None:
    trace_ids = {new_trace_id() for _ in range(100)}
    with (
        otel(exporter_otlp_endpoint=receiver.url, bsp_schedule_delay=600_000, service_name="mine"),
        run_gateway(tmp_path / "log", model_repository=model_repository, triton_url=triton_url, workers=2) as gateway,
        ThreadPoolExecutor(8) as threads,
    ):
        wait_until(lambda: b"listening on" in gateway.log.read_bytes(), 60)
        list(threads.map(lambda trace_id: ask(gateway.url, "one", trace_id), trace_ids))
        assert not [span for span in receiver.spans if span.trace_id in trace_ids]
    servers = [span for span in receiver.spans if span.name == SERVER and span.trace_id in trace_ids]
    assert {span.trace_id for span in servers} == trace_ids
    assert len({span.resource["process.pid"] for span in servers}) == 2
    assert {span.resource["service.name"] for span in servers} == {"mine"}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_cannot_be_sent_is_told_at_the_start(model_repository: Path, triton_url: str, workers: int) -> None:
    with otel(exporter_otlp_endpoint="http://127.0.0.1:4317", exporter_otlp_protocol="grpc"):
        code, log = fail_to_start(model_repository=model_repository, triton_url=triton_url, workers=workers)
    assert code == 1
    assert "cannot start: OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf" in log
    assert "Traceback" not in log


def test_a_missing_extra_is_named(model_repository: Path, triton_url: str) -> None:
    code = "import sys; sys.modules['opentelemetry.sdk'] = None; from gateway.__main__ import main; sys.exit(main())"
    with otel(exporter_otlp_endpoint="http://127.0.0.1:4318"):
        environment = gateway_environment(port=free_port(), model_repository=model_repository, triton_url=triton_url)
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install -e '.[otel]'" in result.stderr
