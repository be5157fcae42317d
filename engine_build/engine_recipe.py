"""What an engine is built to: shapes, memory and effort, and how Triton runs it. Part of the recipe; pure."""

from dataclasses import dataclass
from typing import TypeAlias

from engine_build.errors import OptionError

Shape: TypeAlias = tuple[int, int]
"""Rows and padded length of a batch."""

DEFAULT_WORKSPACE_MIB = 8192
DEFAULT_OPTIMUM: Shape = (64, 128)
"""The batch that kernels are chosen for: 9 % faster at this shape and 10 % slower at others than another choice there
(observed, BERT-base FP16, TensorRT 8.6)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Shapes that an engine takes, and the one that its kernels are chosen for."""

    minimum: Shape
    optimum: Shape
    maximum: Shape

    @classmethod
    def parse(cls, text: str) -> "Profile":
        """Read `1x1:64x128:64x512`.

        Raises:
            OptionError: it has another form, or does not ascend.
        """
        try:
            minimum, optimum, maximum = (_shape(part) for part in text.lower().split(":"))
        except ValueError:
            raise OptionError(f"{text!r} is no profile; 1x1:64x128:64x512 is, rows x tokens") from None
        profile = cls(minimum, optimum, maximum)
        sizes = list(zip(minimum, optimum, maximum, strict=True))
        if any(list(size) != sorted(size) or size[0] < 1 for size in sizes):
            raise OptionError(f"profile {profile}: each number must ascend from least to most, and from 1")
        return profile

    def __str__(self) -> str:
        return ":".join(f"{rows}x{length}" for rows, length in (self.minimum, self.optimum, self.maximum))


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """How TensorRT builds the engine.

    Attributes:
        profiles: shapes; all have one largest batch, as Triton wants it.
        workspace_mib: most memory that a kernel may use for itself while running, MiB.
        builder_level: TensorRT's effort, 0 to 5; None for its default.
    """

    profiles: tuple[Profile, ...]
    workspace_mib: int = DEFAULT_WORKSPACE_MIB
    builder_level: int | None = None


def default_profile(max_batch_size: int, max_sequence_length: int) -> Profile:
    """From one token to the largest batch."""
    rows, length = DEFAULT_OPTIMUM
    optimum = (min(rows, max_batch_size), min(length, max_sequence_length))
    return Profile((1, 1), optimum, (max_batch_size, max_sequence_length))


def check_profiles(profiles: tuple[Profile, ...], max_batch_size: int, max_sequence_length: int) -> None:
    """Make sure that every batch the gateway may send fits into some profile.

    Raises:
        OptionError: it does not, or the largest batches differ.
    """
    if {profile.maximum[0] for profile in profiles} != {max_batch_size}:
        raise OptionError(f"every profile must end at the largest batch, {max_batch_size} rows, as Triton has one")
    longest = 0
    for profile in sorted(profiles, key=lambda one: one.minimum[1]):
        if profile.minimum[0] != 1 or profile.minimum[1] > longest + 1:
            raise OptionError(f"no profile takes one row of {longest + 1} tokens")
        longest = max(longest, profile.maximum[1])
    if longest < max_sequence_length:
        raise OptionError(f"no profile takes {max_sequence_length} tokens, the longest sequence")


def _shape(text: str) -> Shape:
    rows, length = text.split("x")
    return int(rows), int(length)
