"""Fixtures for all tests: the demo model, the real Triton on it, started once, and a gateway before it."""

import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.embedded import EmbeddedTriton
from tests.contract.caller import ALIAS, KEY, Caller
from tests.gateway_process import ROOT, GatewayProcess, run_gateway
from tests.integration.triton_figures import DEMO_MODEL as DEMO_MODEL_NAME
from tests.integration.triton_figures import TritonFigures, read_figures
from tests.stub_gateway import StubGateway, run_stub_gateway

DEMO_MODEL = ROOT / "models" / "all-MiniLM-L6-v2"
START_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """Folder of the real all-MiniLM-L6-v2; the variable DEMO_MODEL names another place."""
    folder = Path(os.environ.get("DEMO_MODEL", DEMO_MODEL))
    if not (folder / "modules.json").is_file():
        pytest.fail(f"{folder} is missing: run make demo-model")
    return folder


@pytest.fixture(scope="session")
def model_repository(demo_model_folder: Path) -> Path:
    """The demo model, built by engine_build; kept between test runs, as an unchanged model is not built again."""
    from engine_build.cli import main as build_engine  # noqa: PLC0415 - not needed by most tests

    repository = ROOT / ".cache" / "test_triton_repo"
    handlers, level = logging.root.handlers[:], logging.root.level
    arguments = ["all", "--model", str(demo_model_folder), "--target", "embedded", "--repo", str(repository)]
    try:
        assert build_engine(arguments) == 0
    finally:
        logging.root.handlers[:], logging.root.level = handlers, level
    return repository


@pytest.fixture(scope="session")
def embedded_triton(model_repository: Path) -> Iterator[EmbeddedTriton]:
    with EmbeddedTriton(model_repository, grpc_port=0, http_port=0, metrics_port=0) as triton:
        triton.wait_ready(START_TIMEOUT_S)
        yield triton


@pytest.fixture(scope="session")
def triton_url(embedded_triton: EmbeddedTriton) -> str:
    """host:port of its gRPC endpoint."""
    return embedded_triton.grpc_url


@pytest.fixture(scope="session")
def triton_http_url(embedded_triton: EmbeddedTriton) -> str:
    return embedded_triton.http_url


@pytest.fixture(scope="session")
def triton_figures(embedded_triton: EmbeddedTriton) -> TritonFigures:
    return partial(read_figures, embedded_triton.http_url)


@pytest.fixture(scope="session")
def gateway(
    model_repository: Path, triton_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with run_gateway(log, model_repository=model_repository, triton_url=triton_url) as process:
        yield process


@pytest.fixture(scope="session")
def caller(gateway: GatewayProcess) -> Iterator[Caller]:
    """A caller of a gateway with default settings."""
    with Caller(gateway.url) as caller:
        yield caller


@pytest.fixture(scope="session")
def keyed(model_repository: Path, triton_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A caller, with the right key, of a gateway with keys, an alias, a page's origin and small limits."""
    log = tmp_path_factory.mktemp("keyed") / "gateway.log"
    settings: dict[str, Any] = {
        "model_repository": model_repository,
        "triton_url": triton_url,
        "api_keys": f"another-key,{KEY}",
        "model_aliases": f'{{"{ALIAS}": "{DEMO_MODEL_NAME}"}}',
        "cors_origins": "https://page.example",
        "max_body_bytes": 1_000_000,
        "max_inputs": 100,
        "max_request_tokens": 1000,
        "body_timeout_s": 1,
    }
    with run_gateway(log, **settings) as gateway, Caller(gateway.url, {"authorization": f"Bearer {KEY}"}) as caller:
        yield caller


@pytest.fixture(scope="session")
def stub(model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubGateway]:
    """A gateway before a stub Triton whose model has prompts, with a deadline of two seconds."""
    prompts = {"query": "query: ", "passage": "passage: "}
    folder = tmp_path_factory.mktemp("stub")
    with run_stub_gateway(model_repository, folder, prompts, request_timeout_s=2) as running:
        yield running


@pytest.fixture
def stub_caller(stub: StubGateway) -> Iterator[Caller]:
    """A caller of that gateway."""
    stub.triton.requests.clear()
    with Caller(stub.gateway.url) as caller:
        yield caller


@pytest.fixture
def broken(stub: StubGateway) -> Iterator[StubGateway]:
    """The stub, to be broken; whole again afterwards, and the gateway ready."""
    yield stub
    stub.triton.mend()
    deadline = time.monotonic() + 20
    with Caller(stub.gateway.url) as caller:
        while caller.ask("a").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
