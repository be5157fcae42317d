"""TensorRT's version as its tools print it, and what follows from it. Called by trtexec and check; pure."""

import re
from dataclasses import dataclass

from engine_build.errors import EngineError

BANNER = re.compile(r"\[TensorRT v(\d+(?:\.\d+)*)\]")
"""In the first line that trtexec prints: `&&&& RUNNING TensorRT.trtexec [TensorRT v100600] [b26] # trtexec ...`."""


@dataclass(frozen=True, slots=True, order=True)
class TensorRTVersion:
    """Major, minor and patch."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def strongly_typed(self) -> bool:
        """Whether the types in the graph are binding; before 10, flags choose the kernels."""
        return self.major >= 10

    @property
    def slow_gelu(self) -> bool:
        """Whether GELU is slow unless a graph has it by rows (observed, 8.6; later versions were not measured)."""
        return self.major < 10


def parse_version(text: str) -> TensorRTVersion:
    """Read `8.6.0`, `10.13.2.6` or `11.1`.

    Raises:
        EngineError: it is no version.
    """
    numbers = re.findall(r"\d+", text)[:3]
    if not numbers:
        raise EngineError(f"{text!r} is no version of TensorRT")
    return TensorRTVersion(*(int(number) for number in (*numbers, "0", "0")[:3]))


def read_banner(output: str) -> TensorRTVersion:
    """Find the version in what trtexec printed; up to 8 it is written `8601`, from 10 on `100600` or with dots.

    Raises:
        EngineError: there is none, or engine_build does not know the version.
    """
    match = BANNER.search(output)
    if not match:
        raise EngineError(f"trtexec does not tell its version; it printed: {output[:200]!r}")
    version = parse_version(match[1]) if "." in match[1] else _from_number(int(match[1]))
    if (version.major, version.minor) < (8, 6) or version.major == 9:
        raise EngineError(f"TensorRT {version} is not supported; 8.6, 10 and 11 are")
    return version


def _from_number(number: int) -> TensorRTVersion:
    if number >= 10_000:
        return TensorRTVersion(number // 10_000, number // 100 % 100, number % 100)
    return TensorRTVersion(number // 1000, number // 100 % 10, number % 100)
