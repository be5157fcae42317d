"""Draws the dashboard without Grafana: its own queries, put to a real Prometheus under load, as one picture.

Run by hand: `python -m tests.deploy.dashboard_picture docs/dashboard.png`. The load grows, stays, and ends.
"""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateway.embedded import EmbeddedTriton
from tests.deploy.load import traffic
from tests.deploy.monitoring import Prometheus, panel_queries, read_panels, run_prometheus
from tests.gateway_process import ROOT, run_gateway

REPOSITORY = ROOT / ".cache" / "test_triton_repo"
PHASES_S = (20, 20, 20)
_LINES = 8


def main(path: Path) -> None:
    """Run everything and write the picture."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        triton = stack.enter_context(EmbeddedTriton(REPOSITORY, grpc_port=0, http_port=0, metrics_port=0))
        triton.wait_ready(60)
        gateway = stack.enter_context(
            run_gateway(folder / "gateway.log", model_repository=REPOSITORY, triton_url=triton.grpc_url)
        )
        targets = {
            "gateway": gateway.url.removeprefix("http://"),
            "triton": triton.metrics_url.removeprefix("http://").removesuffix("/metrics"),
        }
        prometheus = stack.enter_context(run_prometheus(folder, targets))
        started = time.time()
        _load(gateway.url)
        draw(prometheus, started, time.time()).savefig(path)


def _load(url: str) -> None:
    few, many, none = PHASES_S
    with traffic(url, callers=1):
        time.sleep(few)
        with traffic(url, callers=6):
            time.sleep(many)
    time.sleep(none)


def draw(prometheus: Prometheus, start: float, end: float) -> Figure:
    """Return all panels that have data, in the dashboard's order."""
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 8, "axes.grid": True, "grid.alpha": 0.3})
    panels = [(panel, _series(prometheus, panel, start, end)) for panel in read_panels()]
    shown = [(panel, series) for panel, series in panels if series]
    columns = 4
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4 * columns, 2.2 * rows), dpi=90, layout="constrained")
    for index, (panel, series) in enumerate(shown):
        _draw_panel(figure.add_subplot(rows, columns, index + 1), panel, series)
    return figure


def _series(prometheus: Prometheus, panel: dict[str, Any], start: float, end: float) -> dict[str, list[Any]]:
    """Return the points of each series by its legend, the busiest first."""
    found = {}
    for target, query in zip(panel["targets"], panel_queries(panel, interval="10s"), strict=True):
        answer = prometheus.get("query_range", query=query.expression, start=start, end=end, step=1)
        for series in answer["result"]:
            legend = target["legendFormat"]
            for label, value in series["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            found[legend] = series["values"]
    return dict(sorted(found.items(), key=lambda item: -max(float(value) for _, value in item[1])))


def _draw_panel(axes: Axes, panel: dict[str, Any], series: dict[str, list[Any]]) -> None:
    axes.set_title(f"{panel['title']} [{panel['fieldConfig']['defaults'].get('unit', 'none')}]", loc="left")
    first = min(points[0][0] for points in series.values())
    for label, points in list(series.items())[:_LINES]:
        axes.plot([at - first for at, _ in points], [float(value) for _, value in points], linewidth=1, label=label)
    if len(series) > 1:
        axes.legend(fontsize=5, loc="upper left")
    axes.set_ylim(bottom=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
