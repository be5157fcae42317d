"""Times plans, and torch's half-precision attention, on this GPU; prints a table and writes the figures.

    python speed.py --python PYTHON --model FOLDER --lengths 32,128,512 --out FILE NAME=PLAN ...

Tokens a second of the engine alone: the median of runs by CUDA events, ids at random, no padding. torch is
transformers' model in FP16 with scaled_dot_product_attention, on the same shapes, in the same run.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel
from transformers.utils import logging

from engine_build.plan import open_plan

RUNS = 100
LONG_RUNS = 20
LONG_MS = 10.0
"""A run from here on is taken fewer times."""
WARM_UP = 10
BATCHES = (1, 32, 64)
Shape = tuple[int, int]


def time_plan(python: str, plan: Path, shapes: list[Shape], vocabulary: int) -> dict[Shape, float]:
    """Median milliseconds of each shape."""
    times = {}
    with open_plan(python, plan) as opened:
        for shape in shapes:
            ids = np.random.default_rng(1).integers(5, vocabulary, shape, dtype=np.int32)
            arrays = {"input_ids": ids, "attention_mask": np.ones(shape, np.int32)}
            runs = LONG_RUNS if opened.time_ms(arrays, WARM_UP)[-1] > LONG_MS else RUNS
            times[shape] = float(np.median(opened.time_ms(arrays, runs)))
    return times


def time_torch(folder: Path, shapes: list[Shape], vocabulary: int) -> dict[Shape, float]:
    """The same with torch."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float16).eval().cuda()
    times = {}
    with torch.inference_mode():
        for shape in shapes:
            ids = torch.randint(5, vocabulary, shape, device="cuda")
            mask = torch.ones_like(ids)
            taken = [time_call(model, ids, mask) for _ in range(WARM_UP + RUNS)][WARM_UP:]
            times[shape] = float(np.median(taken))
    return times


def time_call(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> float:
    """Milliseconds of one call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    model(input_ids=ids, attention_mask=mask)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="+", metavar="NAME=PLAN")
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lengths", default="32,128,512")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    vocabulary = int(json.loads((options.model / "config.json").read_text())["vocab_size"])
    shapes = [(rows, int(length)) for length in options.lengths.split(",") for rows in BATCHES]
    measured = {}
    for name, plan in (text.split("=", 1) for text in options.plans):
        measured[name] = time_plan(options.python, Path(plan), shapes, vocabulary)
    measured["torch FP16 SDPA"] = time_torch(options.model, shapes, vocabulary)
    print("| engine | " + " | ".join(f"[{rows},{length}]" for rows, length in shapes) + " |")
    print("|---|" + "---|" * len(shapes))
    for name, times in measured.items():
        cells = [f"{time:.2f} ms, {shape[0] * shape[1] / time / 1e3:.2f} M" for shape, time in times.items()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    figures = {name: {f"{s[0]}x{s[1]}": time for s, time in times.items()} for name, times in measured.items()}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
