"""The figures so far, and what failed. Filled by scenarios, written by report."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.gpu.workload import OutOfTime

Row = dict[str, str | float]
"""A column's name to what stands in it."""


@dataclass
class Results:
    """Tables of rows, and what could not be measured.

    Attributes:
        begun: `time.monotonic()` at the start.
        tables: rows by title.
        failures: a line each.
    """

    begun: float
    tables: dict[str, list[Row]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, table: str, row: Row) -> None:
        """Add a row, and show it."""
        self.tables.setdefault(table, []).append(row)
        shown = ", ".join(f"{name} {show(value)}" for name, value in row.items())
        print(f"[{time.monotonic() - self.begun:3.0f} s] {table}: {shown}", flush=True)

    def attempt(self, what: str, step: Callable[[], None]) -> None:
        """Take a step; one that fails is told, and does not take the others with it: the machine's time is short.

        Raises:
            OutOfTime: the step said so.
        """
        try:
            step()
        except OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self.failures.append(f"{what}: {type(error).__name__}: {str(error)[:1000]}")
            print(f"[{time.monotonic() - self.begun:3.0f} s] {self.failures[-1]}", flush=True)


def show(value: str | float) -> str:
    """Show a figure with as many places as it deserves."""
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
