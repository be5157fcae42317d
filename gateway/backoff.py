"""Pauses between tries that get longer while they fail. Used by workers and embedded."""

_FIRST_S = 1.0
_LONGEST_S = 30.0


class Backoff:
    """One second, then twice as long each time, up to half a minute."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_S

    def next_s(self) -> float:
        """Return the pause before the next try, seconds."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _LONGEST_S)
        return pause_s

    def reset(self) -> None:
        """Begin with the shortest pause again: a try has succeeded."""
        self._pause_s = _FIRST_S
