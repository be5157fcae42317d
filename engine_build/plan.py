"""A TensorRT plan, opened in a process of its own. Called by engine_steps, verify_plan and cli.

The process runs templates/plan_process.py with a Python that has the tensorrt package, which need not be this one.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from engine_build.errors import EngineError
from engine_build.plan_facts import Machine, PlanFacts, parse_facts, parse_machine

PROGRAM = Path(__file__).parent / "templates" / "plan_process.py"


class Plan:
    """An open plan; close it by leaving its `with` block."""

    def __init__(self, process: "subprocess.Popen[bytes]", machine: Machine, facts: PlanFacts) -> None:
        self._process = process
        self.machine = machine
        self.facts = facts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, arrays: Mapping[str, NDArray[Any]], profile: int | None = None) -> dict[str, NDArray[Any]]:
        """Run one batch, in the first profile that takes it unless one is given; returns the outputs by name.

        Raises:
            EngineError: no profile takes the shape, or TensorRT failed.
        """
        return self._ask(arrays, profile, 0)[1]

    def time_ms(self, arrays: Mapping[str, NDArray[Any]], repeat: int, profile: int | None = None) -> list[float]:
        """Milliseconds on the GPU of each of `repeat` runs, copies left out.

        Raises:
            EngineError: no profile takes the shape, or TensorRT failed.
        """
        return list(self._ask(arrays, profile, repeat)[0]["gpu_ms"])

    def _ask(
        self, arrays: Mapping[str, NDArray[Any]], profile: int | None, repeat: int
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        shapes = {name: array.shape for name, array in arrays.items()}
        chosen = self.facts.find_profile(shapes) if profile is None else profile
        listed = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
        message = {"profile": chosen, "repeat": repeat, "arrays": listed}
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            for array in arrays.values():
                self._process.stdin.write(np.ascontiguousarray(array).tobytes())
            self._process.stdin.flush()
        except OSError as exc:
            raise EngineError(f"the process that runs the plan has ended: {exc}") from exc
        return receive(self._process)


def find_python(asked: str | None) -> str:
    """A Python that has the tensorrt package: the one asked for, else this one, else the first on PATH.

    Raises:
        EngineError: none has it.
    """
    if asked:
        candidates: list[str] = [asked]
    else:
        candidates = [sys.executable] if find_spec("tensorrt") else []
        candidates += [path for path in map(shutil.which, ("python3", "python")) if path]
    for candidate in candidates:
        found = subprocess.run([candidate, "-c", "import tensorrt"], capture_output=True, check=False)  # noqa: S603
        if found.returncode == 0:
            return candidate
    raise EngineError(
        f"{asked or 'no Python here'} has the package tensorrt, which runs the plan for its verification; NVIDIA's "
        "TensorRT image has one: name it with --tensorrt-python"
    )


def read_machine(python: str) -> Machine:
    """Ask for the GPU and TensorRT's version.

    Raises:
        EngineError: there is no usable GPU.
    """
    with _start([python, str(PROGRAM)]) as process:
        return parse_machine(receive(process)[0])


def open_plan(python: str, path: Path) -> Plan:
    """Load a plan.

    Raises:
        EngineError: no usable GPU, or the plan is for another TensorRT or GPU.
    """
    process = _start([python, str(PROGRAM), str(path)])
    try:
        message = receive(process)[0]
        return Plan(process, parse_machine(message), parse_facts(message))
    except BaseException:
        process.kill()
        process.communicate()
        raise


def receive(process: "subprocess.Popen[bytes]") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read one answer of the process.

    Raises:
        EngineError: it tells of an error, or has ended.
    """
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    line = process.stdout.readline()
    if not line:
        raise EngineError(f"the process that runs the plan ended with {process.wait()}")
    message = json.loads(line)
    if "error" in message:
        raise EngineError(str(message["error"]))
    arrays = {}
    for listed in message["arrays"]:
        dtype, shape = np.dtype(listed["dtype"]), tuple(listed["shape"])
        content = process.stdout.read(int(np.prod(shape)) * dtype.itemsize)
        arrays[listed["name"]] = np.frombuffer(content, dtype).reshape(shape)
    return message, arrays


def _start(command: list[str]) -> "subprocess.Popen[bytes]":
    # TensorRT's own messages go to standard error, ours too.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603
