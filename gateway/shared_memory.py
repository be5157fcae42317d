"""Finds out whether outputs can travel through shared memory instead of gRPC. Called by triton when it opens a model.

A region's file is unlinked as soon as Triton has mapped it, so that nothing stays in /dev/shm when a gateway is killed;
what then stays registered at Triton, the next gateway that shares the folder has unregistered.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gateway.batching import most_rows
from gateway.errors import StartupError
from gateway.memory_owner import SHARED_MEMORY, is_left_over, remove_left_over_files
from gateway.output_slots import OutputSlots, Refused, as_refusal, unregister
from gateway.types import ModelSpec, OutputKind

_log = logging.getLogger(__name__)

BYTES_PER_VALUE = 4
"""Room for float32; a float16 output takes half of it."""
_LEAST_VERSION = (2, 50)
"""Earlier servers unmap a region that is in use when they are asked to, and crash (Triton's pull request 7567)."""
_TIMEOUT_S = 2.0


class SharedMemory(StrEnum):
    """Whether outputs travel through shared memory: where it works, always or else no start, never."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SharedMemoryOptions:
    """What is wanted of it.

    Attributes:
        mode: whether to use it.
        max_batch_tokens: most tokens of one engine call, padding included.
        slots_per_instance: engine calls under way for each engine instance.
        show_bytes: told how many bytes of shared memory there are, whenever it changes.
    """

    mode: SharedMemory
    max_batch_tokens: int
    slots_per_instance: int
    show_bytes: Callable[[int], None]


async def open_output_slots(
    client: InferenceServerClient, spec: ModelSpec, options: SharedMemoryOptions
) -> OutputSlots | None:
    """Return regions for the model's outputs; None if they shall, or can only, travel over gRPC.

    Pooled outputs are too small to gain from it.

    Raises:
        StartupError: they shall not travel over gRPC, and cannot otherwise.
        InferenceServerException: Triton cannot be reached.
    """
    if options.mode is SharedMemory.OFF or spec.output_kind is OutputKind.SENTENCE_EMBEDDING:
        return None
    try:
        slots = await _open(client, spec, options)
    except Refused as error:
        if options.mode is SharedMemory.ON:
            raise StartupError(f"no shared memory for the outputs of model {spec.name}: {error}") from error
        _log.info("outputs of model %s travel over gRPC: %s", spec.name, error)
        return None
    _log.info("outputs of model %s travel through shared memory", spec.name)
    return slots


async def _open(client: InferenceServerClient, spec: ModelSpec, options: SharedMemoryOptions) -> OutputSlots:
    await _check_version(client)
    rows = {length: most_rows(length, spec.max_batch_size, options.max_batch_tokens) for length in spec.length_buckets}
    most_tokens = max(length * count for length, count in rows.items())
    calls = spec.instances * options.slots_per_instance
    try:
        slots = OutputSlots(most_tokens * spec.hidden_size * BYTES_PER_VALUE, calls, options.show_bytes)
    except OSError as error:
        raise Refused(f"{SHARED_MEMORY}: {error.strerror}") from error
    try:
        await slots.make_first(client)
        # Not before: of gateways that do not share the folder, it cannot be told whether they run.
        await _clear_after_dead_owners(client)
    except BaseException:
        await slots.close(client)
        raise
    return slots


async def _check_version(client: InferenceServerClient) -> None:
    try:
        version = (await client.get_server_metadata(client_timeout=_TIMEOUT_S)).version
    except InferenceServerException as error:
        if refusal := as_refusal(error):
            raise refusal from error
        raise
    numbers = tuple(int(number) for number in version.split(".")[:2] if number.isdecimal())
    if numbers < _LEAST_VERSION:
        raise Refused(f"Triton is {version}, {'.'.join(map(str, _LEAST_VERSION))} is needed")


async def _clear_after_dead_owners(client: InferenceServerClient) -> None:
    """Unregister at Triton what gateways had that are gone. What it still uses is left to the next start."""
    status = await client.get_system_shared_memory_status(client_timeout=_TIMEOUT_S)
    cleared = [name for name in status.regions if is_left_over(name) and await unregister(client, name, _TIMEOUT_S)]
    if cleared:
        _log.info("%d regions of shared memory were left over by gateways that are gone", len(cleared))
    remove_left_over_files()
