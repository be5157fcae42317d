"""Reads docker-compose.yml as compose does: variables filled in, merges resolved."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.gateway_process import ROOT

COMPOSE_FILE = ROOT / "docker-compose.yml"
ENV_EXAMPLE = ROOT / ".env.example"

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<operator>:-|:\?)(?P<argument>[^}]*))?\}")


class MissingVariableError(Exception):
    """A variable that must be set is not."""


def read_env(path: Path, *, commented: bool = False) -> dict[str, str]:
    """Return the variables of an env file; with `commented`, those that are commented out as well."""
    pattern = re.compile(r"^#?([A-Z_0-9]+)=(.*)$" if commented else r"^([A-Z_0-9]+)=(.*)$", re.MULTILINE)
    return dict(pattern.findall(path.read_text()))


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Fill in `${NAME}`, `${NAME:-default}` and `${NAME:?message}`, outside of comments."""

    def fill(match: re.Match[str]) -> str:
        value = variables.get(match["name"], "")
        if value:
            return value
        if match["operator"] == ":?":
            raise MissingVariableError(match["argument"])
        return match["argument"] or ""

    return _VARIABLE.sub(fill, text)


def read_compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the compose file with these variables, without its extension fields."""
    content: dict[str, Any] = yaml.safe_load(interpolate(COMPOSE_FILE.read_text(), variables))
    return {key: value for key, value in content.items() if not key.startswith("x-")}


def default_variables(text: str) -> dict[str, str]:
    """Return each variable's default in a compose file, those without one left out."""
    return {match["name"]: match["argument"] for match in _VARIABLE.finditer(text) if match["operator"] == ":-"}
