"""Finds what builds and runs plans on this machine. Called by build and cli."""

from dataclasses import dataclass

from engine_build.errors import EngineError
from engine_build.plan import find_python, read_machine
from engine_build.plan_facts import Machine
from engine_build.tensorrt_version import parse_version
from engine_build.trtexec import Trtexec, find_trtexec


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """What the command line names; None looks for it."""

    trtexec: str | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """What builds and runs plans here.

    Attributes:
        trtexec: builds.
        python: runs, with its package tensorrt.
        machine: the GPU, and the version of that package.
    """

    trtexec: Trtexec
    python: str
    machine: Machine


def find_tools(paths: ToolPaths) -> Tools:
    """Find all, and make sure that they are of one TensorRT.

    Raises:
        EngineError: something is missing, there is no usable GPU, or the versions differ.
    """
    trtexec = find_trtexec(paths.trtexec)
    python = find_python(paths.python)
    machine = read_machine(python)
    if parse_version(machine.tensorrt) != trtexec.version:
        raise EngineError(
            f"{trtexec.path} is of TensorRT {trtexec.version}, the package of {python} of {machine.tensorrt}: "
            "a plan of one does not load in the other"
        )
    return Tools(trtexec, python, machine)
