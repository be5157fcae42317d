"""Holds docs/api.md to the code: the tests that it names are there, its errors and limits are ours."""

import ast
import re
from pathlib import Path

from gateway import errors
from gateway.errors import GatewayError
from gateway.settings import Settings
from tests.gateway_process import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()


def part(name: str) -> str:
    return PAGE.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_tests_that_it_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", part("contract"))
    assert len(named) > 50
    missing = [f"{path}::{name}" for path, name in named if name not in functions(ROOT / path)]
    assert missing == []


def test_every_promise_has_a_test() -> None:
    rows = part("contract").strip().splitlines()[2:]
    assert all("::test_" in row for row in rows)


def test_its_errors_are_all_that_there_are() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)]
    ours = {(kind.status, kind.type, kind.code or "") for kind in kinds if kind is not GatewayError}
    shown = re.findall(r"^\| (\d+) \| `(\w+)` \| (?:`(\w+)` )?\|", part("errors"), re.MULTILINE)
    assert {(int(status), kind, code) for status, kind, code in shown} == ours
    assert len(shown) == len(ours)


def test_its_limits_are_settings_with_these_defaults() -> None:
    rows = re.findall(r"\| ([\d,]+)(?: (MiB|s))? \| `GATEWAY_(\w+)` \|", PAGE)
    assert len(rows) == 8
    for shown, unit, name in rows:
        default = Settings.model_fields[name.lower()].default
        assert int(shown.replace(",", "")) * (1024 * 1024 if unit == "MiB" else 1) == default, name
