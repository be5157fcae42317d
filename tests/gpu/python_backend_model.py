"""Runs a plan in Triton's Python backend, where there is no TensorRT backend: same tensors, same batching.

Stands beside model.plan and plan_process.py in a version folder. For correctness and for the gateway's behaviour, not
for speed: every output is copied through shared memory, and the instances take turns on the GPU.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))
from plan_process import Driver, Plan, PlanError

INPUTS = ("input_ids", "attention_mask")


class TritonPythonModel:
    """One instance, with its own copy of the plan."""

    def initialize(self, args: "dict[str, str]") -> None:
        """Load the plan."""
        self._plan = Plan(str(Path(__file__).with_name("model.plan")), Driver())

    def execute(self, requests: "list[Any]") -> "list[Any]":
        """Run all requests together; Triton joins requests of one shape only."""
        parts = {
            name: [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in INPUTS
        }
        ends = np.cumsum([len(part) for part in parts["input_ids"]])
        try:
            outputs, _ = self._plan.run({name: np.concatenate(arrays) for name, arrays in parts.items()})
        except PlanError as exc:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc)))] * len(requests)
        split = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, rows[index]) for name, rows in split.items()])
            for index in range(len(requests))
        ]
