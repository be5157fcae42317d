"""What deploy/ asks of Prometheus: its rules, the dashboard's queries, and a real server to put them to."""

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.gateway_process import ROOT, free_port

PROMETHEUS_FOLDER = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "embedding-gateway.json"
RULES = sorted(PROMETHEUS_FOLDER.glob("rules/*.yml"))

ALERT = re.compile(r"(?P<expression>.+?) (?P<operator>[<>]) (?P<number>[\d.]+)", re.DOTALL)
ONLY_WITH_GPU = "nv_gpu_"
"""Triton has these metrics where it sees a GPU."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and where it stands."""

    place: str
    expression: str

    @property
    def needs_gpu(self) -> bool:
        return ONLY_WITH_GPU in self.expression


def program(name: str) -> str:
    """Return the path of prometheus or promtool."""
    return shutil.which(name) or pytest.fail(f"{name} is missing: install it with `apt install prometheus`")


def read_rules(kind: str) -> list[dict[str, Any]]:
    """Return the rules that have `record`, or those that have `alert`."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def read_panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels, without the headings of its rows."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in panels if panel["type"] != "row"]


def panel_queries(panel: dict[str, Any], *, interval: str = "1m") -> list[Query]:
    """Return a panel's queries with the dashboard's variables filled in."""
    return [
        Query(panel["title"], target["expr"].replace("$__rate_interval", interval).replace("$model", ".*"))
        for target in panel["targets"]
    ]


def all_queries() -> list[Query]:
    """Return every expression: of rules that record, of alerts without their threshold, of the dashboard."""
    recorded = [Query(rule["record"], rule["expr"]) for rule in read_rules("record")]
    recorded += [Query(rule["record"], rule["record"]) for rule in read_rules("record")]
    alerts = []
    for rule in read_rules("alert"):
        match = ALERT.fullmatch(rule["expr"])
        assert match, f"{rule['alert']} is not `expression operator number`"
        alerts.append(Query(rule["alert"], match["expression"]))
    return recorded + alerts + [query for panel in read_panels() for query in panel_queries(panel)]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def get(self, path: str, **parameters: str | float) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values of an expression now, without those that are not a number."""
        result = self.get("query", query=expression)["result"]
        return [number for sample in result if not math.isnan(number := float(sample["value"][1]))]


def scrape_config(targets: dict[str, str]) -> dict[str, Any]:
    """Return our prometheus.yml with these targets by job, reading them every second."""
    config: dict[str, Any] = yaml.safe_load((PROMETHEUS_FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS_FOLDER / pattern) for pattern in config["rule_files"]]
    config["scrape_configs"] = [
        {"job_name": each["job_name"], "static_configs": [{"targets": [targets[each["job_name"]]]}]}
        for each in config["scrape_configs"]
        if each["job_name"] in targets
    ]
    return config


@contextmanager
def run_prometheus(folder: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Start a Prometheus on these targets; stop it in the end."""
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(scrape_config(targets)))
    port = free_port()
    log = folder / "prometheus.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(prometheus, process, log)
        yield prometheus
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_ready(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{prometheus.url}/-/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError(log.read_text())
