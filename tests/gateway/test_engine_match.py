"""A foreign plan is told of as `built for X, found Y, rebuild with ...`."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway import engine_match
from gateway.engine_match import Found, describe_mismatch, explained
from gateway.errors import StartupError

GIB = 2**30
MANIFEST: dict[str, Any] = {
    "source": {"folder": "m3e-base"},
    "engine": {
        "tensorrt": "10.13.2",
        "triton": "2.60.0",
        "gpu": "NVIDIA L4",
        "compute_capability": "8.9",
        "gpu_memory_bytes": 24 * GIB,
    },
}
BUILT = "the plan was built for TensorRT 10.13.2 on NVIDIA L4 (compute capability 8.9), "
REBUILD = "; rebuild with `python -m engine_build all --model m3e-base --target tensorrt`"


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        pytest.param(Found("2.60.0", "", (24.2 * GIB,)), None, id="the same"),
        pytest.param(Found(), None, id="nothing known"),
        pytest.param(Found("2.60.0", "", (80.0 * GIB, 24.0 * GIB)), None, id="one of the GPUs"),
        pytest.param(Found("2.61.0"), "found Triton 2.61.0 instead of 2.60.0", id="Triton"),
        pytest.param(Found("2.60.0", "", (80.0 * GIB,)), "found GPUs of 80 GiB instead of 24 GiB", id="GPU"),
        pytest.param(Found("2.60.0", "version tag"), "Triton says: version tag", id="reason"),
    ],
)
def test_mismatch(found: Found, difference: str | None) -> None:
    assert describe_mismatch(MANIFEST, found) == (difference and f"{BUILT}{difference}{REBUILD}")


def test_a_model_without_a_plan_fits_everywhere() -> None:
    assert describe_mismatch({"source": {}}, Found("1.0.0", "reason")) is None


def test_a_builder_that_did_not_know_triton() -> None:
    manifest = MANIFEST | {"engine": MANIFEST["engine"] | {"triton": None}}

    assert describe_mismatch(manifest, Found("2.61.0")) is None


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def ask(url: str, model: str) -> Found:
        assert (url, model) == ("triton:8001", "m3e")
        return Found("2.61.0")

    monkeypatch.setattr(engine_match, "_ask", ask)
    (tmp_path / "m3e").mkdir()
    (tmp_path / "m3e" / "manifest.json").write_text(json.dumps(MANIFEST))
    return tmp_path / "m3e"


async def test_an_error_is_explained(directory: Path) -> None:
    with pytest.raises(StartupError, match=r"^not ready; the plan was built for .*, found Triton 2.61.0.*; rebuild"):
        async with explained("triton:8001", directory):
            raise StartupError("not ready")


async def test_a_model_that_works_is_warned_of(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with explained("triton:8001", directory):
        pass

    assert caplog.messages == [f"model m3e: {BUILT}found Triton 2.61.0 instead of 2.60.0{REBUILD}"]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("content", [None, "", "[]", '{"engine": {"tensorrt": "8"}}'])
async def test_other_manifests_change_nothing(content: str | None, directory: Path) -> None:
    (directory / "manifest.json").unlink()
    if content is not None:
        (directory / "manifest.json").write_text(content)

    with pytest.raises(StartupError, match=r"^not ready$"):
        async with explained("triton:8001", directory):
            raise StartupError("not ready")
