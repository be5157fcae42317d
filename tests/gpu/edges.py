"""Tries a plan at and beyond the edges of its profile, and broken copies of it.

    python edges.py --python PYTHON PLAN

Prints a line for each; ends with 1 when one is not as it must be.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from engine_build.errors import EngineError
from engine_build.plan import Plan, open_plan


def feeds(rows: int, length: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """One text, in every row."""
    ids = np.tile(np.random.default_rng(2).integers(5, 20000, length, dtype=np.int32), (rows, 1))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def inside(plan: Plan, rows: int, length: int) -> bool:
    """A shape of the profile runs, and equal rows get nearly equal vectors."""
    output = next(iter(plan.run(feeds(rows, length)).values())).astype(np.float64).reshape(rows, -1)
    norms = np.linalg.norm(output, axis=1)
    least = float((output @ output[0] / norms / norms[0]).min())
    print(f"{rows}x{length}: least cosine between equal rows {least:.6f}")
    return least > 0.9999


def refused(plan: Plan, rows: int, length: int) -> bool:
    """A shape beyond the profile is refused, here and by TensorRT itself."""
    for profile in (None, 0):
        try:
            plan.run(feeds(rows, length), profile)
        except EngineError as exc:
            print(f"{rows}x{length}: refused: {exc}")
        else:
            print(f"{rows}x{length}: NOT refused")
            return False
    return True


def broken(python: str, content: bytes, what: str) -> bool:
    """A damaged plan does not load, and the reason is told."""
    with tempfile.NamedTemporaryFile(suffix=".plan") as file:
        file.write(content)
        file.flush()
        try:
            with open_plan(python, Path(file.name)):
                print(f"{what}: NOT refused")
                return False
        except EngineError as exc:
            print(f"{what}: refused: {exc}")
            return True


def main() -> int:
    """Try all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("--python", required=True)
    options = parser.parse_args()
    with open_plan(options.python, options.plan) as plan:
        rows = plan.facts.max_batch_size
        length = max(shapes[2][1] for shapes in plan.facts.profiles[0].values())
        good = [inside(plan, *shape) for shape in ((1, 2), (3, 7), (rows, length), (17, length - 1), (rows, 1), (1, 1))]
        good += [refused(plan, *shape) for shape in ((rows + 1, 2), (1, length + 1))]
    content = options.plan.read_bytes()
    good += [broken(options.python, content[: len(content) // 2], "half a plan"), broken(options.python, b"", "empty")]
    version = b"".join(b"\x02\x80\x01\x00" + bytes([number]) for number in (8, 6))
    if version in content:  # how TensorRT 8.6.0 writes its version into the header
        other = content.replace(version, version[:-1] + b"\x05", 1)
        good += [broken(options.python, other, "a plan with the stamp of 8.5")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
