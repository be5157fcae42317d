"""Writes what was measured as tables (Markdown) and figures (JSON). Called by __main__."""

import json
import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.gpu.results import Results, Row, show

_LIBRARIES = ("fastapi", "grpcio", "numpy", "orjson", "tokenizers", "torch", "tritonclient", "uvicorn", "uvloop")


def describe_machine(triton_version: str) -> dict[str, str]:
    """Return GPU, processors and versions."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    libraries = [f"{name} {found}" for name in _LIBRARIES if (found := _version(name))]
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "gpu": _gpu(),
        "processors": f"{len(os.sched_getaffinity(0))} x {cpu[1] if cpu else platform.machine()}",
        "system": f"{platform.platform()}, Python {platform.python_version()}",
        "triton": triton_version,
        "libraries": ", ".join(libraries),
    }


def write(folder: Path, machine: dict[str, str], results: Results) -> Path:
    """Write both files; return the tables'."""
    figures = {"machine": machine, "tables": results.tables, "failures": results.failures}
    (folder / "bench.json").write_text(json.dumps(figures, indent=1) + "\n")
    lines = [f"- {name}: {value}" for name, value in machine.items()]
    for title, rows in results.tables.items():
        lines += ["", f"**{title}**", "", *_table(rows)]
    if results.failures:
        lines += ["", "Not measured:", "", *(f"- {failure}" for failure in results.failures)]
    path = folder / "bench.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _table(rows: list[Row]) -> list[str]:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(show(row[column]) for column in columns) + " |" for row in rows]


def _gpu() -> str:
    if not shutil.which("nvidia-smi"):
        return "none"
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
