"""Runs a long command with its output in a file, and tells how it goes. Called by trtexec."""

import logging
import re
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_build.errors import EngineError

logger = logging.getLogger(__name__)

LAST_LINES = 15
PROGRESS_EVERY_S = 20.0
WORTH_SHOWING = re.compile(r"\[W\].*(?:norm|overflow|subnormal|precision|weights)", re.IGNORECASE)
"""Warnings that tell of lost accuracy; the rest of a log is in its file."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    Attributes:
        returncode: negative: the signal that ended it.
        passed: whether it printed trtexec's line of success.
        text: all it printed.
    """

    returncode: int
    passed: bool
    text: str

    @property
    def last_lines(self) -> str:
        """The end of what it printed."""
        return "\n".join(self.text.splitlines()[-LAST_LINES:])


def run_logged(command: Sequence[str], folder: Path, log: Path) -> Outcome:
    """Run in a folder, add what it prints to a file, and report progress.

    Raises:
        EngineError: the command does not exist or may not be run.
    """
    started, lines, shown = time.monotonic(), deque[str](), set[str]()
    next_report = started + PROGRESS_EVERY_S
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        try:
            process = subprocess.Popen(  # noqa: S603 - the arguments are ours; no shell reads them
                command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        except OSError as exc:
            raise EngineError(f"cannot run {command[0]}: {exc.strerror}") from exc
        with process:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            try:
                for line in process.stdout:
                    file.write(line)
                    lines.append(line)
                    _show_warning(line, shown)
                    if time.monotonic() > next_report:
                        logger.info("still at it after %.0f s: %s", time.monotonic() - started, line.strip()[:100])
                        next_report = time.monotonic() + PROGRESS_EVERY_S
            except BaseException:
                process.kill()
                raise
    text = "".join(lines)
    return Outcome(process.returncode, "&&&& PASSED" in text, text)


def _show_warning(line: str, shown: set[str]) -> None:
    message = line.rsplit("[W]", maxsplit=1)[-1].strip()
    if WORTH_SHOWING.search(line) and message not in shown:
        shown.add(message)
        logger.warning("%s", message)
