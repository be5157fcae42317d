"""Learns what an engine call costs from the calls that were made. Called by scheduler; no clock of its own."""

_FORGET = 0.98
"""Weight that an observation keeps with each later one: about the last fifty count."""
_FIRST_OVERHEAD_TOKENS = 512.0
_LEAST_OVERHEAD_TOKENS = 256.0
"""A call costs the gateway and gRPC about as much even where the engine's own overhead is nothing, as on a CPU."""
_MOST_OVERHEAD_TOKENS = 4096.0


class EngineCost:
    """A call's time as a + b x padded tokens, fitted to recent calls by least squares with forgetting.

    A BERT-base plan on an H200 takes 0.95 ms for [1,32] and 1.86 million tokens a second for [64,128]: there a is worth
    1700 tokens. MiniLM on a CPU takes its time for the tokens alone.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._sum_tokens = self._sum_s = 0.0
        self._sum_tokens_tokens = self._sum_tokens_s = 0.0

    def observe(self, padded_tokens: int, call_s: float) -> None:
        """Learn from a call of `padded_tokens` = rows x padded length that took `call_s` seconds."""
        self._weight = self._weight * _FORGET + 1
        self._sum_tokens = self._sum_tokens * _FORGET + padded_tokens
        self._sum_s = self._sum_s * _FORGET + call_s
        self._sum_tokens_tokens = self._sum_tokens_tokens * _FORGET + padded_tokens * padded_tokens
        self._sum_tokens_s = self._sum_tokens_s * _FORGET + padded_tokens * call_s

    @property
    def call_s(self) -> float:
        """Seconds that a call takes on average; 0 before the first call."""
        return self._sum_s / self._weight if self._weight else 0.0

    @property
    def overhead_tokens(self) -> float:
        """How many padded tokens the engine could have run in the time that a call costs by itself."""
        if not self._weight:
            return _FIRST_OVERHEAD_TOKENS
        mean_tokens, mean_s = self._sum_tokens / self._weight, self._sum_s / self._weight
        variance = self._sum_tokens_tokens / self._weight - mean_tokens**2
        slope = (self._sum_tokens_s / self._weight - mean_tokens * mean_s) / variance if variance > 1 else 0.0
        if slope <= 0:
            return _FIRST_OVERHEAD_TOKENS
        overhead = (mean_s - slope * mean_tokens) / slope
        return min(max(overhead, _LEAST_OVERHEAD_TOKENS), _MOST_OVERHEAD_TOKENS)
