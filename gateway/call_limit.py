"""How many tokens an engine call may have, so that it ends soon. Called by scheduler; no clock of its own.

A call that took too long tells how many tokens would have ended in time, if its time was that of its tokens, as on a
CPU. Where it was not, as behind other clients' calls, cutting only makes the engine slower, and is left for a while.
"""

import math

_LEAST_TOKENS = 512.0
"""Fewer are mostly overhead."""
_REAL_CUT = 0.7
"""Only calls of fewer tokens than this share of a whole one's are compared with it."""
_PAUSE_CALLS = 20
"""How many calls are not cut after cutting did not help."""


class CallLimit:
    """Most padded tokens of an engine call.

    Args:
        longest_s: how long a call should take at most.

    Attributes:
        tokens: the limit; infinity while calls are not cut.
    """

    def __init__(self, longest_s: float) -> None:
        self.tokens = math.inf
        self._longest_s = longest_s
        self._whole_tokens, self._whole_tokens_s = 0, 0.0
        self._pause_calls = 0

    def observe(self, padded_tokens: int, call_s: float, calls: int) -> None:
        """Learn from a call, unless it is a small one; `calls` were under way, itself included."""
        self._pause_calls -= 1
        whole = self.tokens == math.inf or padded_tokens > self.tokens  # the latter began before the limit
        if padded_tokens < (_LEAST_TOKENS if self.tokens == math.inf else self.tokens / 2):
            return
        if call_s < self._longest_s / 2:
            self.tokens *= 2
        elif call_s > self._longest_s and self._pause_calls <= 0:
            tokens_s = padded_tokens / call_s
            if whole:
                self._whole_tokens, self._whole_tokens_s = padded_tokens, tokens_s * calls
            if self._was_in_vain(padded_tokens, tokens_s * calls):
                self.tokens, self._pause_calls = math.inf, _PAUSE_CALLS
            else:
                self.tokens = max(tokens_s * self._longest_s, _LEAST_TOKENS)

    def _was_in_vain(self, tokens: int, tokens_s: float) -> bool:
        """Say whether a call's time is rather the same as a whole one's than in proportion to its tokens."""
        share = tokens / self._whole_tokens
        return share < _REAL_CUT and tokens_s < math.sqrt(share) * self._whole_tokens_s
