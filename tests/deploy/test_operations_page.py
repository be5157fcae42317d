"""docs/operations.md against the code: every metric, alert and setting is there, and nothing that does not exist."""

import re

import pytest

from gateway.errors import GatewayError
from gateway.metrics import Metrics
from gateway.settings import Settings
from tests.deploy.monitoring import all_queries, read_panels, read_rules
from tests.gateway_process import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
HEADINGS = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)


def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def test_every_metric_of_the_gateway() -> None:
    families = {family.name: family.type for family in Metrics(["m"]).registry.collect()}
    names = {f"{name}_total" if kind == "counter" else name for name, kind in families.items()}
    assert set(re.findall(r"`(gateway_[a-z_]+)`", PAGE)) == names


def test_every_metric_of_triton_that_is_asked_for() -> None:
    asked_for = set(re.findall(r"(?<![:\w])nv_\w+(?![:\w])", " ".join(query.expression for query in all_queries())))
    assert set(re.findall(r"`(nv_[a-z_]+)`", PAGE)) == asked_for


def test_every_alert_has_a_section_that_its_runbook_leads_to() -> None:
    rules = {rule["alert"]: rule for rule in read_rules("alert")}
    start = HEADINGS.index("Alerts")
    assert HEADINGS[start + 1 : start + 1 + len(rules)] == list(rules)
    for name, rule in rules.items():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{anchor(name)}"
        section = PAGE[PAGE.index(f"### {name}\n") :]
        assert section.split("\n")[2].startswith(f"*{rule['labels']['severity']}.*")


def test_every_setting() -> None:
    settings = {f"GATEWAY_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"`(GATEWAY_[A-Z_]+[A-Z])(?:=false)?`", PAGE)) == settings


def test_codes_of_errors() -> None:
    classes = [GatewayError]
    for each in classes:
        classes += each.__subclasses__()
    section = PAGE[PAGE.index("### EmbeddingErrors") : PAGE.index("### EmbeddingBadOutputs")]
    codes = {each.code for each in classes if each.status >= 500 and each.code}
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == codes


def test_panels_that_are_named() -> None:
    titles = {panel["title"] for panel in read_panels()}
    for title in ("Stage, mean", "Engine slots", "Rows of an engine call", "Padding", "Wait", "Phases of a call, mean",
                  "Requests by status", "Errors by code", "Triton's processor", "Calls", "Request"):  # fmt: skip
        assert title in titles


@pytest.mark.parametrize("page", ["operations.md", "gpu-host.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for file, fragment in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
        target = (ROOT / "docs" / (file or page)).read_text()
        assert fragment in {anchor(heading) for heading in re.findall(r"^#+ (.+)$", target, re.MULTILINE)}
