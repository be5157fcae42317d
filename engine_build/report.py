"""What a verification on many texts found: a table for people, figures for the manifest. Made by verify_plan; pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine_build.vectors import Row

WORST_SHOWN = 5

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Token ids to a text."""


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a verification, and the bar they must reach."""

    what: str
    rows: tuple[Row, ...]
    least_allowed: float

    @property
    def worst(self) -> list[Row]:
        """The rows with the least cosines; those that are not finite come first."""
        return sorted(self.rows, key=lambda row: -math.inf if math.isnan(row.cosine) else row.cosine)[:WORST_SHOWN]

    @property
    def not_finite(self) -> int:
        """How many rows had a value that is not finite."""
        return sum(math.isnan(row.cosine) for row in self.rows)

    @property
    def least_cosine(self) -> float:
        """Over all rows; NaN where one is not finite."""
        return self.worst[0].cosine

    @property
    def good(self) -> bool:
        """Whether every row reaches the bar."""
        return self.least_cosine >= self.least_allowed  # also false for NaN

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them."""
        return {
            "what": self.what,
            "rows": len(self.rows),
            "not_finite": self.not_finite,
            "least_cosine": None if math.isnan(self.least_cosine) else round(self.least_cosine, 7),
            "least_allowed": self.least_allowed,
            "by_shape": {
                f"{batch}x{tokens}": None if math.isnan(cosine) else round(cosine, 7)
                for (batch, tokens), (_, cosine) in self._cells().items()
            },
        }

    def table(self, texts: Sequence[Sequence[int]], decode: Decode) -> str:
        """Least cosine for each batch size and length, then the worst texts."""
        lines = [f"{self.what}: {len(self.rows)} rows, least cosine {self.least_cosine:.7f} ({self._verdict()})"]
        lines += ["  batch  tokens   rows  least cosine"]
        lines += [
            f"  {batch:5d}  {tokens:6d}  {count:5d}  {cosine:12.7f}"
            for (batch, tokens), (count, cosine) in self._cells().items()
        ]
        lines += ["  worst texts:"]
        lines += [
            f"  {row.cosine:.7f}  text {row.text}, {row.tokens} tokens, row {row.place} of {row.batch}: "
            f"{decode(texts[row.text])[:60]!r}"
            for row in self.worst
        ]
        return "\n".join(lines)

    def _verdict(self) -> str:
        bar = f"{self.least_allowed} is needed"
        return f"{bar}: good" if self.good else f"{bar}: NOT good; {self.not_finite} rows are not finite"

    def _cells(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Rows and least cosine by batch size and length; a last batch that is smaller counts for itself."""
        cells: dict[tuple[int, int], tuple[int, float]] = {}
        for row in self.rows:
            count, least = cells.get((row.batch, row.tokens), (0, math.inf))
            # NaN wins: min() alone would drop it or not, by the order.
            lower = row.cosine if math.isnan(row.cosine) else min(least, row.cosine)
            cells[row.batch, row.tokens] = (count + 1, math.nan if math.isnan(least) else lower)
        return dict(sorted(cells.items()))
