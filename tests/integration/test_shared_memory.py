"""Outputs through shared memory, with the real Triton: the same answers, whatever is cancelled, killed or lost."""

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from tritonclient.grpc.aio import InferenceServerClient

from gateway import memory_owner, output_slots
from gateway.embedded import EmbeddedTriton
from gateway.errors import EngineBadOutput, EngineTimeout, StartupError
from gateway.shared_memory import SharedMemory, SharedMemoryOptions
from gateway.triton import TritonEngine, open_triton_engine
from gateway.types import Batch
from tests.gateway_process import fail_to_start, run_gateway
from tests.integration.echo_model import (
    HIDDEN_SIZE,
    LONGEST,
    MOST_ROWS,
    NARROWER,
    WIDER,
    expected,
    make_batch,
    write_echo_model,
)
from tests.reliability.callers import ask, is_ready, sample, until, wait_until
from tests.reliability.restartable import RestartableTriton
from tests.reliability.test_workers import worker_pids

FOLDER = Path("/dev/shm")
PREFIX = "embedding-gateway-output-"
LARGEST_BYTES = MOST_ROWS * LONGEST * HIDDEN_SIZE * 4
SHAPES = [(1, 16), (3, 64), (8, 64), (1, LONGEST), (MOST_ROWS, LONGEST)]


@pytest.fixture(scope="module")
def echo_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("echo")
    write_echo_model(repository, "echo", "float32")
    write_echo_model(repository, "echo-half", "float16")
    return repository


@pytest.fixture(scope="module")
def echo_triton(echo_repository: Path) -> Iterator[EmbeddedTriton]:
    with EmbeddedTriton(echo_repository, grpc_port=0, http_port=0, metrics_port=0) as triton:
        triton.wait_ready(60)
        yield triton


def options(mode: SharedMemory = SharedMemory.ON, slots: int = 2) -> SharedMemoryOptions:
    return SharedMemoryOptions(mode, 16_384, slots, lambda _: None)


@pytest.fixture
async def engine(echo_triton: EmbeddedTriton) -> AsyncIterator[TritonEngine]:
    """The model, with shared memory for four calls at once."""
    engine = await open_triton_engine(echo_triton.grpc_url, "echo", 30, options())
    yield engine
    await engine.close()
    assert await regions(echo_triton.grpc_url) == {}
    assert files() == set()


async def regions(url: str) -> dict[str, int]:
    """Return the regions that are registered at Triton, and their sizes in bytes."""
    client = InferenceServerClient(url)
    try:
        status = await client.get_system_shared_memory_status()
        return {name: region.byte_size for name, region in status.regions.items()}
    finally:
        await client.close()


def files() -> set[str]:
    """Return the files of regions that stay; those of gateways that others run here come and go."""
    seen = {path.name for path in FOLDER.glob(f"{PREFIX}*")}
    if seen:
        time.sleep(0.2)
        seen &= {path.name for path in FOLDER.glob(f"{PREFIX}*")}
    return seen


async def infer_right(engine: TritonEngine, batch: Batch, timeout_s: float = 30) -> None:
    np.testing.assert_array_equal(await engine.infer(batch, timeout_s), expected(batch))


@pytest.mark.parametrize("model", ["echo", "echo-half"])
async def test_the_same_as_over_grpc(echo_triton: EmbeddedTriton, model: str) -> None:
    through_memory = await open_triton_engine(echo_triton.grpc_url, model, 30, options())
    over_grpc = await open_triton_engine(echo_triton.grpc_url, model, 30)
    for seed, (rows, length) in enumerate(SHAPES):
        batch = make_batch(rows, length, seed)
        output, same = [await engine.infer(batch, 30) for engine in (through_memory, over_grpc)]
        np.testing.assert_array_equal(output, same)
        np.testing.assert_array_equal(output, expected(batch))
        assert output.dtype == same.dtype == np.float32
        assert output.flags.owndata == (model == "echo-half")
    assert await regions(echo_triton.grpc_url)
    await over_grpc.close()
    await through_memory.close()


async def test_many_calls_of_mixed_shapes_at_once(engine: TritonEngine, echo_triton: EmbeddedTriton) -> None:
    places = asyncio.Semaphore(4)

    async def one(seed: int) -> None:
        rows, length = random.Random(seed).choice(SHAPES)
        async with places:
            await infer_right(engine, make_batch(rows, length, seed, first_id=seed % 4))

    await asyncio.gather(*map(one, range(200)))
    assert files() == set()
    sizes = (await regions(echo_triton.grpc_url)).values()
    assert len(sizes) <= 4
    assert max(sizes) == LARGEST_BYTES


async def test_a_region_is_used_again_only_when_its_output_is_gone(
    engine: TritonEngine, echo_triton: EmbeddedTriton
) -> None:
    first = make_batch(2, 64, 1)
    row = (await engine.infer(first, 30))[1]
    for seed in range(2, 8):
        await infer_right(engine, make_batch(2, 64, seed))
        np.testing.assert_array_equal(row, expected(first)[1])
    before = await regions(echo_triton.grpc_url)
    del row
    for seed in range(8, 12):
        await infer_right(engine, make_batch(2, 64, seed))
    assert await regions(echo_triton.grpc_url) == before


async def test_cancelled_and_late_calls_spoil_no_other_answer(
    engine: TritonEngine, echo_triton: EmbeddedTriton
) -> None:
    chance = random.Random(0)
    places = asyncio.Semaphore(4)
    ends = {"right": 0, "cancelled": 0, "late": 0}

    async def one(seed: int) -> None:
        rows, length = chance.choice(SHAPES)
        batch = make_batch(rows, length, seed, first_id=chance.randrange(20))
        async with places:
            call = asyncio.create_task(infer_right(engine, batch, chance.choice([0.004, 0.02, 30, 30])))
            if chance.random() < 0.4:
                await asyncio.sleep(chance.random() / 50)
                call.cancel()
            try:
                await call
                ends["right"] += 1
            except asyncio.CancelledError:
                ends["cancelled"] += 1
            except EngineTimeout:
                ends["late"] += 1

    await asyncio.gather(*map(one, range(500)))
    assert min(ends.values()) > 50, ends
    for seed in range(500, 520):
        await infer_right(engine, make_batch(MOST_ROWS, LONGEST, seed))
    await engine.check_ready(5)
    assert len(await regions(echo_triton.grpc_url)) <= 4


@pytest.mark.parametrize("is_late", [False, True], ids=["cancelled", "late"])
async def test_what_is_written_after_the_end_of_a_call_goes_nowhere(
    engine: TritonEngine, echo_triton: EmbeddedTriton, is_late: bool
) -> None:
    slow, quick = make_batch(1, 16, 0, first_id=900), make_batch(1, 16, 1)
    call = asyncio.create_task(engine.infer(slow, 0.2 if is_late else 30))
    await asyncio.sleep(0.2)
    if not is_late:
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await engine.check_ready(5)
    (in_use,) = await regions(echo_triton.grpc_url)
    answer = await engine.infer(quick, 30)

    async def is_given_up() -> bool:
        await engine.check_ready(5)
        return in_use not in await regions(echo_triton.grpc_url)

    await until(is_given_up, 10)
    np.testing.assert_array_equal(answer, expected(quick))
    assert len(await regions(echo_triton.grpc_url)) == 1


async def test_no_more_memory_than_is_allowed_for(echo_triton: EmbeddedTriton) -> None:
    shown: list[int] = []
    engine = await open_triton_engine(
        echo_triton.grpc_url, "echo", 30, SharedMemoryOptions(SharedMemory.ON, 16_384, 1, shown.append)
    )
    calls = [asyncio.create_task(engine.infer(make_batch(MOST_ROWS, LONGEST, i, 900), 30)) for i in range(4)]
    await asyncio.sleep(0.3)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await infer_right(engine, make_batch(MOST_ROWS, LONGEST, 9))  # over gRPC
    assert max(shown) <= 4 * LARGEST_BYTES
    await engine.close()
    assert shown[-1] == 0
    assert await regions(echo_triton.grpc_url) == {}


@pytest.mark.parametrize("first_id", [WIDER, NARROWER])
async def test_an_output_of_another_width(engine: TritonEngine, first_id: int) -> None:
    with pytest.raises(EngineBadOutput):
        await engine.infer(make_batch(2, 16, 0, first_id), 5)
    await infer_right(engine, make_batch(2, 16, 1))


async def test_triton_is_started_again(echo_repository: Path) -> None:
    with RestartableTriton(echo_repository) as triton:
        triton.start()
        engine = await open_triton_engine(triton.url, "echo", 30, options())
        held = await engine.infer(make_batch(2, 64, 0), 30)
        await infer_right(engine, make_batch(2, 64, 1))
        assert len(await regions(triton.url)) == 2
        triton.kill()
        wait_until(lambda: not triton.is_alive(), 5)
        triton.start()
        assert await regions(triton.url) == {}
        await engine.reconnect()
        await asyncio.gather(*(infer_right(engine, make_batch(2, 64, seed)) for seed in range(2, 5)))
        assert await regions(triton.url)
        np.testing.assert_array_equal(held, expected(make_batch(2, 64, 0)))
        del held
        for seed in range(5, 10):
            await infer_right(engine, make_batch(2, 64, seed))
        await engine.close()
        assert await regions(triton.url) == {}


async def test_regions_that_another_client_unregistered(engine: TritonEngine, echo_triton: EmbeddedTriton) -> None:
    held = await asyncio.gather(*(engine.infer(make_batch(2, 64, seed), 30) for seed in range(3)))
    client = InferenceServerClient(echo_triton.grpc_url)
    await client.unregister_system_shared_memory()
    await client.close()
    await asyncio.gather(*(infer_right(engine, make_batch(2, 64, seed)) for seed in range(3, 6)))
    for seed, output in enumerate(held):
        np.testing.assert_array_equal(output, expected(make_batch(2, 64, seed)))
    del output, held
    await asyncio.gather(*(infer_right(engine, make_batch(2, 64, seed)) for seed in range(6, 9)))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Shared memory where Triton does not look: to both, it is as in containers without a common /dev/shm."""
    with TemporaryDirectory(dir=FOLDER) as folder:
        for module in (memory_owner, output_slots):
            monkeypatch.setattr(module, "SHARED_MEMORY", Path(folder))
        yield Path(folder)


async def test_on_does_not_start_where_triton_cannot_open_the_memory(
    echo_triton: EmbeddedTriton, elsewhere: Path
) -> None:
    with pytest.raises(StartupError, match=r"model echo: Triton says: Unable to open .* another /dev/shm"):
        await open_triton_engine(echo_triton.grpc_url, "echo", 30, options())
    assert os.listdir(elsewhere) == []


@pytest.mark.usefixtures("elsewhere")
async def test_auto_goes_over_grpc_where_triton_cannot_open_the_memory(
    echo_triton: EmbeddedTriton, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = await open_triton_engine(echo_triton.grpc_url, "echo", 30, options(SharedMemory.AUTO))
    await infer_right(engine, make_batch(2, 64, 0))
    assert await regions(echo_triton.grpc_url) == {}
    assert caplog.text.count("travel over gRPC: Triton says: Unable to open") == 1
    await engine.close()


async def test_no_shared_memory_on_this_machine(
    echo_triton: EmbeddedTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_owner, "SHARED_MEMORY", tmp_path / "none")
    with pytest.raises(StartupError, match="No such file or directory"):
        await open_triton_engine(echo_triton.grpc_url, "echo", 30, options())


async def test_half_of_the_memory_is_left_to_others(
    engine: TritonEngine,
    echo_triton: EmbeddedTriton,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await infer_right(engine, make_batch(1, 16, 0))
    sizes = list(os.statvfs(FOLDER))
    sizes[4] = sizes[2] // 2 + LARGEST_BYTES // sizes[1] - 1  # f_bavail of f_blocks, in f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(sizes))  # a fake: full memory would harm others
    for seed in range(1, 4):
        await infer_right(engine, make_batch(MOST_ROWS, LONGEST, seed))
    assert caplog.text.count("outputs travel over gRPC for 30 s: /dev/shm: half of it must stay free") == 1
    await infer_right(engine, make_batch(1, 16, 4))
    assert sum((await regions(echo_triton.grpc_url)).values()) < LARGEST_BYTES


# ---- The gateway as a process ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_triton(model_repository: Path) -> Iterator[EmbeddedTriton]:
    """A Triton whose regions are those of the gateways below alone."""
    with EmbeddedTriton(model_repository, grpc_port=0, http_port=0, metrics_port=0) as triton:
        triton.wait_ready(60)
        yield triton


def owners(triton: EmbeddedTriton) -> set[str]:
    """Return whose regions are registered."""
    return {name.removeprefix(PREFIX).partition("-")[0] for name in asyncio.run(regions(triton.grpc_url))}


def test_a_gateway_leaves_nothing(own_triton: EmbeddedTriton, model_repository: Path, tmp_path: Path) -> None:
    settings = {"model_repository": model_repository, "triton_url": own_triton.grpc_url}
    with run_gateway(tmp_path / "killed.log", **settings) as gateway:
        assert ask(gateway.url, ["a tree", "a house"]).status == 200
        assert sample(gateway.url, "shared_memory_bytes") > 0
        assert files() == set()
        gateway.process.kill()
    assert files() == set()
    killed = owners(own_triton)
    assert len(killed) == 1
    with run_gateway(tmp_path / "ended.log", **settings) as gateway:
        assert ask(gateway.url).status == 200
        assert len(owners(own_triton) - killed) == 1
        assert not owners(own_triton) & killed
        assert "left over by gateways that are gone" in gateway.log.read_text()
    assert owners(own_triton) == set()
    assert files() == set()


def test_each_worker_has_its_own(own_triton: EmbeddedTriton, model_repository: Path, tmp_path: Path) -> None:
    log, url = tmp_path / "gateway.log", own_triton.grpc_url
    with run_gateway(log, model_repository=model_repository, triton_url=url, workers=2, shared_memory="on") as gateway:
        wait_until(lambda: b"listening on" in log.read_bytes(), 60)
        before = owners(own_triton)
        assert len(before) == 2
        os.kill(worker_pids(gateway)[0], signal.SIGKILL)
        wait_until(lambda: len(owners(own_triton) - before) == 1 and len(owners(own_triton) & before) == 1, 30)
        wait_until(lambda: all(is_ready(gateway.url) for _ in range(5)), 30)
        assert {ask(gateway.url).status for _ in range(10)} == {200}
    assert owners(own_triton) == set()


def test_off(own_triton: EmbeddedTriton, model_repository: Path, tmp_path: Path) -> None:
    settings = {"model_repository": model_repository, "triton_url": own_triton.grpc_url, "shared_memory": "off"}
    with run_gateway(tmp_path / "gateway.log", **settings) as gateway:
        assert ask(gateway.url).status == 200
        assert sample(gateway.url, "shared_memory_bytes") == 0
        assert owners(own_triton) == set()


def test_on_is_for_one_endpoint(model_repository: Path) -> None:
    code, output = fail_to_start(
        model_repository=model_repository, triton_url="triton-0:8001,triton-1:8001", shared_memory="on"
    )
    assert code
    assert output.count("cannot start: GATEWAY_SHARED_MEMORY=on needs a GATEWAY_TRITON_URL of one endpoint") == 1
