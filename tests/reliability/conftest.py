"""Gateways before a stub Triton that sleeps or lies, and before a real one that is killed and stopped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.restartable import RestartableTriton
from tests.stub_gateway import StubGateway, answer, run_stub_gateway


@pytest.fixture(scope="session")
def _stub_gateway(model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubGateway]:
    with run_stub_gateway(model_repository, tmp_path_factory.mktemp("stub")) as stub_gateway:
        yield stub_gateway


@pytest.fixture
def stub_gateway(_stub_gateway: StubGateway) -> Iterator[StubGateway]:
    """One gateway for all tests; each gets the stub as it was."""
    yield _stub_gateway
    stub = _stub_gateway.triton
    stub.answer, stub.delay_s, stub.ready, stub.status, stub.cancelled = answer, 0.0, True, None, 0
    stub.requests.clear()


@pytest.fixture(scope="session")
def _restartable(model_repository: Path) -> Iterator[RestartableTriton]:
    with RestartableTriton(model_repository) as triton:
        triton.start()
        yield triton


@pytest.fixture
def triton(_restartable: RestartableTriton) -> Iterator[RestartableTriton]:
    """A real Triton, running at the begin of each test."""
    if not _restartable.is_alive():
        _restartable.start()
    yield _restartable
    _restartable.resume()
