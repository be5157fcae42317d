"""Compares what a TensorRT plan was built for with the Triton and the GPU that serve it. Called by serving at start.

A plan loads only with the TensorRT and the class of GPU that it was built for, and Triton's own words for that help
nobody. engine_build wrote into the manifest what they were; Triton tells its version, why a model does not load, and by
its metrics how much memory its GPUs have.
"""

import asyncio
import json
import logging
import re
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gateway.contract import MANIFEST_FILE
from gateway.errors import StartupError

_log = logging.getLogger(__name__)

_METRICS_PORT = 8002
_TIMEOUT_S = 2.0
_GPU_MEMORY = re.compile(r"^nv_gpu_memory_total_bytes\{[^}]*\} (\S+)$", re.MULTILINE)
_MEMORY_TOLERANCE = 0.05
"""The driver and its management library count a GPU's memory a little differently."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Found:
    """What a Triton says of itself; None and empty where it does not.

    Attributes:
        version: Triton's.
        reason: why the model is not loaded, in Triton's words.
        memory_bytes: of each GPU.
    """

    version: str | None = None
    reason: str = ""
    memory_bytes: tuple[float, ...] = ()


@asynccontextmanager
async def explained(url: str, directory: Path) -> AsyncIterator[None]:
    """Around the opening of a model: tell of a foreign plan, as part of the error or, where it works, as a warning.

    Args:
        url: Triton's gRPC endpoint.
        directory: the model's.

    Raises:
        StartupError: the one raised inside, with what is known of the plan behind it.
    """
    try:
        yield
    except StartupError as error:
        if explanation := await _explain(url, directory):
            raise StartupError(f"{error}; {explanation}") from error
        raise
    if explanation := await _explain(url, directory):
        _log.warning("model %s: %s", directory.name, explanation)


def describe_mismatch(manifest: Mapping[str, Any], found: Found) -> str | None:
    """Return `built for X, found Y, rebuild with ...`; None for a model without a plan, or when nothing differs."""
    engine = manifest.get("engine")
    if not engine:
        return None
    differences = [f"Triton says: {found.reason}"] if found.reason else []
    if engine.get("triton") and found.version and found.version != engine["triton"]:
        differences.append(f"found Triton {found.version} instead of {engine['triton']}")
    wanted = float(engine["gpu_memory_bytes"])
    if found.memory_bytes and not any(abs(one / wanted - 1) < _MEMORY_TOLERANCE for one in found.memory_bytes):
        sizes = ", ".join(f"{one / _GIB:.0f} GiB" for one in found.memory_bytes)
        differences.append(f"found GPUs of {sizes} instead of {wanted / _GIB:.0f} GiB")
    if not differences:
        return None
    built = f"TensorRT {engine['tensorrt']} on {engine['gpu']} (compute capability {engine['compute_capability']})"
    command = f"python -m engine_build all --model {manifest['source']['folder']} --target tensorrt"
    return f"the plan was built for {built}, {', '.join(differences)}; rebuild with `{command}`"


async def _explain(url: str, directory: Path) -> str | None:
    try:
        manifest = json.loads((directory / MANIFEST_FILE).read_bytes())
        if not manifest.get("engine"):
            return None
        return describe_mismatch(manifest, await _ask(url, directory.name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a broken manifest is told of elsewhere


async def _ask(url: str, model: str) -> Found:
    memory = asyncio.to_thread(_read_gpu_memory, f"http://{url.rpartition(':')[0]}:{_METRICS_PORT}/metrics")
    client = InferenceServerClient(url)
    try:
        metadata = await client.get_server_metadata(client_timeout=_TIMEOUT_S)
        index = await client.get_model_repository_index(client_timeout=_TIMEOUT_S)
    except InferenceServerException:
        return Found(memory_bytes=await memory)
    finally:
        await client.close()
    reasons = [entry.reason for entry in index.models if entry.name == model and entry.state != "READY"]
    return Found(metadata.version, "; ".join(filter(None, reasons)), await memory)


def _read_gpu_memory(url: str) -> tuple[float, ...]:
    """Read from Triton's metrics; empty where they cannot be had."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the scheme is written above
            text = answer.read().decode(errors="replace")
    except (OSError, ValueError):
        return ()
    return tuple(float(size) for size in _GPU_MEMORY.findall(text))
