"""A short form of `make soak`: nothing grows with the number of calls but what callers asked for."""

from pathlib import Path

from tests.reliability.callers import answered
from tests.reliability.soak import soak
from tests.stub_gateway import run_stub_gateway


def test_nothing_is_left_behind(model_repository: Path, tmp_path: Path) -> None:
    with run_stub_gateway(model_repository, tmp_path) as stub_gateway:
        before = answered(stub_gateway.gateway.url)
        result = soak(stub_gateway, calls=1200, rounds=4)
        counted = answered(stub_gateway.gateway.url)
    assert not before
    assert sum(result.statuses.values()) == sum(counted.values()) == 1200
    assert result.statuses.keys() <= {"left", "200", "400"}
    assert counted["499"] > 600
    settled = result.readings[1:]  # threads and connections are made when they are first needed
    for name in ("descriptors", "threads", "shared_memory"):
        assert len({getattr(reading, name) for reading in settled}) == 1, result.readings
    assert settled[-1].rss_kib - settled[0].rss_kib < 80_000, result.readings
