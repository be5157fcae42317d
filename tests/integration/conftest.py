"""The real Triton on the demo model, started once, and a gateway before it."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from engine_build.cli import main as build_engine
from gateway.embedded import EmbeddedTriton
from tests.gateway_process import ROOT, GatewayProcess, run_gateway
from tests.integration.triton_figures import TritonFigures, read_figures

START_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def model_repository(demo_model_folder: Path) -> Path:
    """The demo model, built by engine_build; kept between test runs, as an unchanged model is not built again."""
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
