"""What is measured. Each scenario returns rows for the report: what, figure, unit or remark."""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tritonclient.grpc.aio as triton_grpc

from bench import wrk
from bench.models import DEMO_MODEL, demo_repository, toy_repository
from bench.processes import Server, run_gateway, run_infinity
from bench.texts import bodies

Row = tuple[str, str, str]

STAGES = ("tokenize", "queue", "infer", "pool", "render")


def overhead(pairs: int = 5, seconds: float = 6) -> list[Row]:
    """The gateway against infinity-emb on a toy model, alternating; medians of the pairs' ratios."""
    folder, repository = toy_repository()
    rows = []
    with run_gateway(repository) as gateway, run_infinity(folder) as infinity:
        for texts, connections, encoding_format in (
            (1, 32, "base64"),
            (1, 32, "float"),
            (32, 8, "base64"),
            (32, 8, "float"),
        ):
            load = bodies("toy", 50, texts, (8, 16), encoding_format)
            for server in (gateway, infinity):
                wrk.post(server.embeddings_url, load, connections, 3)
            ours, theirs = [], []
            for _ in range(pairs):
                ours.append(wrk.post(gateway.embeddings_url, load, connections, seconds))
                theirs.append(wrk.post(infinity.embeddings_url, load, connections, seconds))
            rows.append(_compare(f"{texts} text(s) x {connections} connections, {encoding_format}", ours, theirs))
    return rows


def _compare(what: str, ours: list[wrk.Load], theirs: list[wrk.Load]) -> Row:
    ratio = statistics.median(our.requests_s / their.requests_s for our, their in zip(ours, theirs, strict=True))
    rates, p99s = [
        [statistics.median(getattr(load, name) for load in loads) for loads in (ours, theirs)]
        for name in ("requests_s", "p99_ms")
    ]
    remark = f"{rates[0]:.0f} against {rates[1]:.0f} requests/s; p99 {p99s[0]:.0f} against {p99s[1]:.0f} ms"
    return what, f"{ratio:.2f} x", remark


def efficiency(pairs: int = 5, seconds: float = 8, texts: int = 32, tokens: int = 32) -> list[Row]:
    """Texts a second through HTTP, divided by those of a bare pre-tokenized gRPC client on the same Triton."""
    with run_gateway(demo_repository()) as gateway:
        load = bodies(DEMO_MODEL.name, 50, texts, (tokens, tokens), "base64")
        wrk.post(gateway.embeddings_url, load, 8, 3)
        ratios, through, bare = [], [], []
        for _ in range(pairs):
            through.append(wrk.post(gateway.embeddings_url, load, 8, seconds).requests_s * texts)
            bare.append(asyncio.run(_bare_client(gateway, texts, tokens, seconds)))
            ratios.append(through[-1] / bare[-1])
        remark = f"{statistics.median(through):.0f} against {statistics.median(bare):.0f} texts/s"
        return [(f"{texts} texts of {tokens} tokens x 8 connections", f"{statistics.median(ratios):.2f}", remark)]


async def _bare_client(gateway: Server, rows: int, tokens: int, seconds: float) -> float:
    client = triton_grpc.InferenceServerClient(
        gateway.triton_grpc,
        channel_args=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    arrays = {
        "input_ids": np.random.default_rng(0).integers(1000, 30_000, (rows, tokens), np.int32),
        "attention_mask": np.ones((rows, tokens), np.int32),
    }
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton_grpc.InferInput(name, array.shape, "INT32"))
        inputs[-1].set_data_from_numpy(array)
    started, done = time.perf_counter(), 0

    async def one_after_the_other() -> None:
        nonlocal done
        while time.perf_counter() - started < seconds:
            result = await client.infer(DEMO_MODEL.name, inputs)
            result.as_numpy("last_hidden_state").mean(axis=1)
            done += rows

    await asyncio.gather(*(one_after_the_other() for _ in range(4)))
    elapsed_s = time.perf_counter() - started
    await client.close()
    return done / elapsed_s


def mixed(seconds: float = 15) -> list[Row]:
    """One text of 3 to 200 tokens each over 64 connections: rows an engine call, padded share, stage times.

    On the demo model, where a call costs its tokens, and on the toy, where it costs mostly by itself, as on a GPU.
    """
    rows = []
    for name, repository in ((DEMO_MODEL.name, demo_repository()), ("toy", toy_repository()[1])):
        rows += [(f"{name}: {what}", figure, remark) for what, figure, remark in _mixed(name, repository, seconds)]
    return rows


def _mixed(model: str, repository: Path, seconds: float) -> list[Row]:
    with run_gateway(repository) as gateway:
        load = bodies(model, 500, 1, (3, 200), "base64")
        wrk.post(gateway.embeddings_url, load, 64, 5)
        before = gateway.metrics()
        measured = wrk.post(gateway.embeddings_url, load, 64, seconds)
        gained = _gain(before, gateway.metrics(), model)
    calls = gained("batch_rows_count")
    real, padding = gained("tokens_total", kind="real"), gained("tokens_total", kind="padding")
    rows = [
        ("rows an engine call", f"{gained('batch_rows_sum') / calls:.1f}", f"{calls:.0f} calls"),
        ("padded share", f"{100 * padding / (real + padding):.1f} %", f"{real + padding:.0f} tokens sent"),
        ("texts a second", f"{measured.requests_s:.1f}", f"p50 {measured.p50_ms:.0f} ms, p99 {measured.p99_ms:.0f} ms"),
    ]
    for stage in STAGES:
        mean_s = gained("stage_duration_seconds_sum", stage=stage) / gained("stage_duration_seconds_count", stage=stage)
        rows.append((f"mean time in {stage}", f"{1000 * mean_s:.2f} ms", ""))
    return rows


def _gain(before: dict[str, float], after: dict[str, float], model: str) -> Callable[..., float]:
    def gained(name: str, **labels: str) -> float:
        pairs = ",".join(f'{key}="{value}"' for key, value in sorted({**labels, "model": model}.items()))
        series = f"gateway_{name}{{{pairs}}}"
        return after[series] - before[series]

    return gained


def memory(first: int = 5_000, last: int = 50_000) -> list[Row]:
    """Resident memory of the gateway after 5,000 and after 50,000 requests."""
    _, repository = toy_repository()
    with run_gateway(repository) as gateway:
        load = bodies("toy", 200, 1, (3, 100), "float")
        done, rss_mib = 0, {}
        for goal in (first, last):
            while done < goal:
                done += wrk.post(gateway.embeddings_url, load, 32, 2).requests
            rss_mib[goal] = gateway.rss_mib
    growth = rss_mib[last] / rss_mib[first] - 1
    remark = f"{rss_mib[first]:.0f} MiB after {first}, {rss_mib[last]:.0f} MiB after {done}"
    return [("growth of resident memory", f"{100 * growth:+.1f} %", remark)]


SCENARIOS: dict[str, Callable[[], list[Row]]] = {
    "overhead": overhead,
    "efficiency": efficiency,
    "mixed": mixed,
    "memory": memory,
}
