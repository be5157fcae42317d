"""Dockerfile.gateway, as far as it can be run without Docker: its linter, its small commands, what its targets set."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.settings import Settings
from tests.deploy.dockerfile import Instruction, read_instructions, stage_chain
from tests.gateway_process import ROOT, GatewayProcess, free_port

DOCKERFILE = ROOT / "Dockerfile.gateway"
TARGETS = ("gateway", "cpu")


@pytest.fixture(scope="module")
def instructions() -> list[Instruction]:
    return read_instructions(DOCKERFILE)


def effective(instructions: list[Instruction], target: str, name: str) -> list[str]:
    """Return the arguments of an instruction in the stages of a target, in order."""
    chain = stage_chain(instructions, target)
    return [each.arguments for stage in chain for each in instructions if each.stage == stage and each.name == name]


@pytest.mark.parametrize("path", sorted(ROOT.glob("Dockerfile.*")), ids=lambda path: path.name)
def test_the_linter_finds_nothing(path: Path) -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "hadolint", "--no-color", path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_the_default_target_is_the_gateway_alone(instructions: list[Instruction]) -> None:
    assert instructions[-1].stage == "gateway"


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_as_a_user_and_gets_signals_itself(instructions: list[Instruction], target: str) -> None:
    assert effective(instructions, target, "USER")[-1] == "10001:10001"
    assert not effective(instructions, target, "ENTRYPOINT")
    assert json.loads(effective(instructions, target, "CMD")[-1]) == ["python", "-m", "gateway"]


@pytest.mark.parametrize("target", TARGETS)
def test_code_is_the_last_layer_and_dependencies_the_one_before(instructions: list[Instruction], target: str) -> None:
    layers = [each for each in instructions if each.stage == target and each.name in ("COPY", "RUN")]
    assert layers[0].arguments == f"--from={target}-environment /opt/gateway /opt/gateway"
    assert layers[-1].arguments.endswith("--no-deps --no-index /dist/*.whl")
    assert len(layers) == 2


def test_variables_are_settings(instructions: list[Instruction]) -> None:
    names = re.findall(r"\bGATEWAY_(\w+)=", " ".join(each.arguments for each in instructions if each.name == "ENV"))
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_requirements_are_those_of_the_project(instructions: list[Instruction], tmp_path: Path) -> None:
    command = json.loads(
        next(each.arguments for each in instructions if each.stage == "requirements" and each.name == "RUN")
    )
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    gateway = project["dependencies"] + extras["otel"]
    assert (tmp_path / "gateway.txt").read_text().splitlines() == gateway
    assert (tmp_path / "cpu.txt").read_text().splitlines() == gateway + extras["embedded"]


def test_what_is_copied_is_there_and_not_ignored(instructions: list[Instruction]) -> None:
    copies = [each.arguments for each in instructions if each.name == "COPY" and "--from" not in each.arguments]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in {source for copy in copies for source in copy.split()[:-1]}:
        assert (ROOT / source).exists()
        assert source in allowed


@pytest.mark.parametrize("target", TARGETS)
def test_healthcheck(instructions: list[Instruction], target: str, gateway: GatewayProcess) -> None:
    arguments = effective(instructions, target, "HEALTHCHECK")[-1]
    command = json.loads(arguments[arguments.index("CMD") + len("CMD") :])
    ports = {"running": gateway.url.rpartition(":")[2], "stopped": str(free_port())}
    codes = {
        state: subprocess.run(
            [sys.executable, *command[1:]], env={"GATEWAY_PORT": port}, capture_output=True, check=False
        ).returncode
        for state, port in ports.items()
    }
    assert codes == {"running": 0, "stopped": 1}
