"""What is sent, for how long. Used by scenarios."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.texts import bodies

_SHORT = (5, 40)
"""Words of a short text: from, to. It has two tokens more."""
_REQUEST_BODIES = 50


class OutOfTime(Exception):
    """The time for all measurements is over."""


@dataclass(frozen=True)
class Workload:
    """Requests, and times.

    Attributes:
        texts: texts of a long request.
        tokens: tokens of each.
        seconds: of one load, whole ones.
        pairs: loads of each of two that are compared, alternating.
        end: `time.monotonic()` after which nothing is begun.
        words: one token each.
    """

    texts: int
    tokens: int
    seconds: int
    pairs: int
    end: float
    words: Sequence[str]

    def long_requests(self, model: str) -> list[dict[str, object]]:
        """Return bodies of many texts of one length."""
        return bodies(model, _REQUEST_BODIES, self.texts, (self.tokens, self.tokens), "base64", self.words)

    def short_requests(self, model: str) -> list[dict[str, object]]:
        """Return bodies of one short text."""
        lengths = (_SHORT[0] + 2, _SHORT[1] + 2)
        return bodies(model, 10 * _REQUEST_BODIES, 1, lengths, "base64", self.words)

    def check_time(self) -> None:
        """Raise OutOfTime when the time is over."""
        if time.monotonic() > self.end:
            raise OutOfTime
