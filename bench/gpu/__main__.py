"""Measures the gateway over models that a Triton serves; see tests/gpu/bench.sh, which calls it."""

import argparse
import json
import time
from pathlib import Path

from bench.gpu import report
from bench.gpu.constant_models import add_constant_model
from bench.gpu.measurement import Measurement, Setup
from bench.gpu.models import one_token_words
from bench.gpu.results import Results, Row
from bench.gpu.servers import run_triton
from bench.gpu.workload import OutOfTime, Workload


def main() -> None:
    """Start Triton, measure, and write the report also when something failed."""
    options = _options()
    begun = time.monotonic()
    for model in (options.token, options.pooled):
        add_constant_model(options.repository, model)
    results = Results(begun)
    workload = Workload(
        texts=options.texts,
        tokens=options.tokens,
        seconds=options.seconds,
        pairs=options.pairs,
        end=begun + options.most_seconds,
        words=one_token_words(options.repository, options.pooled),
    )
    if options.speed.is_file():
        _add_engine_alone(options.speed, workload, results)
    with run_triton(options.triton, options.repository, options.logs / "bench-triton.log") as triton:
        machine = report.describe_machine(triton.version())
        measurement = Measurement(
            workload=workload,
            triton=triton,
            repository=options.repository,
            pooled=options.pooled,
            token=options.token,
            setups=options.setups,
            folder=options.bert,
            infinity=options.infinity,
            device=options.device,
            logs=options.logs,
            results=results,
        )
        try:
            results.attempt("all", measurement.run)
        except OutOfTime:
            results.failures.append(f"what came later: not begun within {options.most_seconds:g} s")
        print(report.write(options.out, machine, results).read_text())
    print(f"took {time.monotonic() - begun:.0f} s")


def _add_engine_alone(speed: Path, workload: Workload, results: Results) -> None:
    """Take over what speed.py measured without a server: milliseconds by engine and shape."""
    for engine, times in json.loads(speed.read_text()).items():
        for rows in (workload.texts, 2 * workload.texts):
            if time_ms := times.get(f"{rows}x{workload.tokens}"):
                row: Row = {"engine": engine, "shape": f"[{rows},{workload.tokens}]", "ms": time_ms}
                results.add("Engine alone", row | {"texts/s": 1000 * rows / time_ms})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    add = parser.add_argument
    add("--repository", type=Path, required=True, help="served model directories; constant copies are added to it")
    add("--token", required=True, help="the one whose output is [B,S,H]")
    add("--pooled", required=True, help="the one whose output is [B,H]")
    add("--bert", type=Path, required=True, help="the model's folder, for infinity")
    add("--triton", help="command that takes a repository and options (the wheel's server)")
    add("--infinity", required=True, help="command infinity_emb")
    add("--device", default="cuda", help="infinity's (cuda)")
    add("--speed", type=Path, required=True, help="figures of speed.py, if there are any")
    add("--out", type=Path, required=True, help="folder of the results")
    add("--logs", type=Path, required=True, help="folder of the servers' logs")
    add(
        "--setups",
        type=_setups,
        default=_setups("4,1,2,8,1x2"),
        help="WORKERS or WORKERSxSLOTS of the gateway, the most telling first (4,1,2,8,1x2)",
    )
    add("--texts", type=int, default=32, help="of a long request (32)")
    add("--tokens", type=int, default=128, help="of each of them (128)")
    add("--seconds", type=int, default=2, help="of one load, whole ones (2)")
    add("--pairs", type=int, default=2, help="loads of each of two that are compared (2)")
    add("--most-seconds", type=float, default=280, help="after which no load is begun (280)")
    return parser.parse_args()


def _setups(text: str) -> list[Setup]:
    return [Setup(*map(int, setup.split("x"))) for setup in text.split(",")]


if __name__ == "__main__":
    main()
