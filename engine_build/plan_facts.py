"""What a plan and the machine that runs it say of themselves. Read by plan, written into config.pbtxt and the manifest.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine_build.errors import EngineError

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What runs plans here.

    Attributes:
        tensorrt: version of the Python package, which is that of the library.
        gpu: the first GPU's name.
        compute_capability: such as `9.0`.
        memory_bytes: the GPU's memory.
    """

    tensorrt: str
    gpu: str
    compute_capability: str
    memory_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them."""
        return {
            "tensorrt": self.tensorrt,
            "gpu": self.gpu,
            "compute_capability": self.compute_capability,
            "gpu_memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a plan; -1 in the shape is any size."""

    name: str
    is_input: bool
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What a plan says of itself.

    Attributes:
        tensors: inputs and outputs.
        profiles: one mapping each, from an input's name to its least, best and largest shape.
    """

    tensors: tuple[Tensor, ...]
    profiles: tuple[Mapping[str, tuple[Shape, ...]], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them."""
        return {
            "tensors": [
                {"name": t.name, "input": t.is_input, "dtype": t.dtype, "shape": list(t.shape)} for t in self.tensors
            ],
            "profiles": [
                {name: [list(shape) for shape in shapes] for name, shapes in one.items()} for one in self.profiles
            ],
        }

    @property
    def max_batch_size(self) -> int:
        """Most rows of a call; every profile has the same.

        Raises:
            EngineError: the profiles differ.
        """
        sizes = {shapes[2][0] for profile in self.profiles for shapes in profile.values()}
        if len(sizes) != 1:
            raise EngineError(f"the profiles end at {sorted(sizes)} rows; Triton has one largest batch for all")
        return sizes.pop()

    def find_profile(self, shapes: Mapping[str, Shape]) -> int:
        """The first profile that takes these inputs.

        Raises:
            EngineError: none does.
        """
        for index, profile in enumerate(self.profiles):
            if all(_inside(shapes[name], *ranges) for name, ranges in profile.items()):
                return index
        raise EngineError(f"no profile of the plan takes {dict(shapes)}")


def parse_machine(message: Mapping[str, Any]) -> Machine:
    """Read what the process says first."""
    return Machine(message["tensorrt"], message["gpu"], message["compute_capability"], message["memory_bytes"])


def parse_facts(message: Mapping[str, Any]) -> PlanFacts:
    """Read what the process says of a loaded plan."""
    return PlanFacts(
        tensors=tuple(Tensor(t["name"], t["input"], t["dtype"], tuple(t["shape"])) for t in message["tensors"]),
        profiles=tuple(
            {name: tuple(tuple(shape) for shape in shapes) for name, shapes in one.items()}
            for one in message["profiles"]
        ),
    )


def _inside(shape: Shape, least: Shape, _best: Shape, most: Shape) -> bool:
    return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))
