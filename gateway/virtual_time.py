"""Gives waiting encodings their turns, so that requests share the engine. Called by scheduler; no clock of its own.

Virtual time tells how far every waiting request would be, in tokens of its own for each part that it has in the engine,
if the engine ran all of them at once. A request starts at the present virtual time, however many wait before it, and
its later encodings follow at the pace of its part. One that has more inputs has more parts, but not in proportion: two
thousand texts get twelve times a single text's share. So neither do small requests wait for large ones to end, nor do
many small ones keep a large one from ending.

Source: the virtual time of weighted fair queueing (Demers, Keshav and Shenker 1989).
"""

from collections.abc import Iterator, Sequence


def parts(inputs: int) -> int:
    """Return how many parts a request of that many inputs has in the engine: one more for each doubling."""
    return inputs.bit_length()


class VirtualTime:
    """The virtual time of one queue.

    Attributes:
        now: tokens for each part; never falls.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def turns(self, lengths: Sequence[int]) -> Iterator[float]:
        """Yield the turn of each of a new request's encodings, which have so many tokens each."""
        turn, own_parts = self.now, parts(len(lengths))
        for length in lengths:
            yield turn
            turn += length / own_parts

    def advance(self, tokens: int, all_parts: int) -> None:
        """Note that so many tokens were run while waiting requests had so many parts together, at least one."""
        self.now += tokens / all_parts
