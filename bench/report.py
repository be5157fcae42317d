"""Writes results as a table (Markdown) and a plot (PNG) into bench/results/."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.scenarios import SCENARIOS, Row

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("embedding-gateway", "nvidia-pytriton", "onnxruntime", "fastapi", "uvicorn", "tokenizers", "numpy")


def describe_machine() -> str:
    """Return the machine and the versions, in one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    versions = ", ".join(f"{library} {version(library)}" for library in LIBRARIES)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cpus = len(os.sched_getaffinity(0))
    processor = model[1] if model else platform.machine()
    return f"{cpus} CPUs ({processor}), Python {platform.python_version()}, {versions}, commit {commit}"


def describe(scenario: str) -> str:
    """Return what a scenario measures, in one line."""
    return " ".join((SCENARIOS[scenario].__doc__ or "").split())


def write_table(results: dict[str, list[Row]]) -> Path:
    """Write the table and return its file."""
    lines = [f"Measured {datetime.now(UTC):%Y-%m-%d} by `make bench` on {describe_machine()}.", ""]
    for name, rows in results.items():
        lines += [f"**{name}**: {describe(name)}", "", "| what | figure | |", "|---|---|---|"]
        lines += [f"| {what} | {figure} | {remark} |" for what, figure, remark in rows]
        lines.append("")
    path = RESULTS / "latest.md"
    path.write_text("\n".join(lines))
    return path


def write_plot(results: dict[str, list[Row]]) -> Path | None:
    """Draw the ratios against infinity, if they were measured, and return the picture's file."""
    if "overhead" not in results:
        return None
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    names = [what for what, _, _ in results["overhead"]]
    ratios = [float(figure.split()[0]) for _, figure, _ in results["overhead"]]
    figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
    bars = axes.barh(names, ratios, color="#4477aa")
    axes.bar_label(bars, [f"{ratio:.2f} x" for ratio in ratios], padding=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, max(ratios) * 1.15)
    axes.invert_yaxis()
    axes.set_xlabel("requests a second; infinity-emb 0.0.78 = 1")
    path = RESULTS / "overhead.png"
    figure.savefig(path, dpi=130)
    return path
