"""Measures how fast the engine empties a queue. Called by scheduler; no clock of its own."""

_WINDOW_S = 0.5
_NEWEST = 0.5
"""Weight of the newest window."""


class DrainRate:
    """Tokens a second that leave a queue while calls leave others behind: an engine with little to do tells nothing.

    Attributes:
        tokens_per_s: as last measured; 0 as long as no call ever left others behind.
    """

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self._since: float | None = None
        self._tokens = 0

    def completed(self, tokens: int, started: float, now: float, *, calls: int, left_others: bool) -> None:
        """Learn from an engine call that ended.

        Args:
            tokens: what it ran.
            started: when it started, seconds.
            now: when it ended.
            calls: how many were under way, itself included.
            left_others: whether it could not take all that waited when it started.
        """
        if not left_others:
            self._since = None
        elif self._since is None:
            self._since, self._tokens = now, 0
            if not self.tokens_per_s:  # a first guess, from one call
                self.tokens_per_s = tokens * calls / max(now - started, 1e-6)
        else:
            self._tokens += tokens
            if now - self._since >= _WINDOW_S:
                rate = self._tokens / (now - self._since)
                self.tokens_per_s += (rate - self.tokens_per_s) * _NEWEST
                self._since, self._tokens = now, 0
