"""Runs model.onnx with ONNX Runtime inside Triton's Python backend, for machines without a GPU.

Stands beside model.onnx in the version folder of a model directory and takes and gives the tensors that config.pbtxt
names, as a TensorRT plan would: int32 [B,S] in; float [B,S,H] or [B,H] out. Self-contained: the interpreter that
Triton runs needs onnxruntime, and a numpy that this Triton supports (below 2 for Triton 2.51).
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

ID_DTYPES = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
CONTROL_GROUP = Path("/sys/fs/cgroup")


class TritonPythonModel:
    """One instance of the model, in a process of its own. Triton makes it and calls its three public methods."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph and hold it against config.pbtxt.

        Args:
            args: Triton's; `model_config` is config.pbtxt as JSON.

        Raises:
            TritonModelException: model.onnx cannot be loaded, or its tensors are not those of config.pbtxt.
        """
        config = json.loads(args["model_config"])
        instances = sum(group["count"] for group in config["instance_group"]) or 1
        self._session = open_session(Path(__file__).with_name("model.onnx"), max(1, cpu_count() // instances))
        self._inputs = {tensor.name: ID_DTYPES.get(tensor.type) for tensor in self._session.get_inputs()}
        self._outputs = {
            tensor["name"]: pb_utils.triton_string_to_numpy(tensor["data_type"]) for tensor in config["output"]
        }
        check_tensors(self._session, {tensor["name"] for tensor in config["input"]}, set(self._outputs))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests, in order, with one run of the graph; Triton joins requests of one shape only.

        Where that fails, each request is run alone, so that only those at fault get an error.
        """
        try:
            return self._run(requests)
        except Exception as error:  # noqa: BLE001 - raised, it would fail the other requests as well
            if len(requests) == 1:
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
            return [response for request in requests for response in self.execute([request])]

    def finalize(self) -> None:
        """Free the graph."""
        del self._session

    def _run(self, requests: list[Any]) -> list[Any]:
        """Join the rows of the requests, run the graph, split its rows again."""
        parts = {name: [read_input(request, name) for request in requests] for name in self._inputs}
        feeds = {name: join(arrays, self._inputs[name]) for name, arrays in parts.items()}
        ends = np.cumsum([len(array) for array in next(iter(parts.values()))])
        outputs = [
            np.split(array.astype(dtype, copy=False), ends[:-1])
            for array, dtype in zip(self._session.run(list(self._outputs), feeds), self._outputs.values(), strict=True)
        ]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(*pair) for pair in zip(self._outputs, rows, strict=True)])
            for rows in zip(*outputs, strict=True)
        ]


def open_session(path: Path, threads: int) -> Any:
    """Return an ONNX Runtime session on `threads` CPU threads.

    Its threads do not spin: spinning took a quarter more CPU time or above, and was slower whenever another process,
    such as the gateway, wanted the same CPUs. The memory arena stays on: without it a batch of [32,32] took a quarter
    longer, and memory rose higher at its peak. Source: measured in pairs, ONNX Runtime 1.32, all-MiniLM-L6-v2, 2 CPUs.

    Raises:
        TritonModelException: the file is missing, or no graph that this ONNX Runtime runs.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise pb_utils.TritonModelException(f"cannot load {path.name}: {error}") from error


def check_tensors(session: Any, inputs: set[str], outputs: set[str]) -> None:
    """Raise TritonModelException unless the graph takes these inputs, as integers, and gives at least these outputs."""
    graph_inputs = {tensor.name for tensor in session.get_inputs() if tensor.type in ID_DTYPES}
    graph_outputs = {tensor.name for tensor in session.get_outputs()}
    if graph_inputs != inputs or len(session.get_inputs()) != len(inputs) or not outputs <= graph_outputs:
        raise pb_utils.TritonModelException(
            f"config.pbtxt names inputs {sorted(inputs)} and outputs {sorted(outputs)}, "
            f"and model.onnx has integer inputs {sorted(graph_inputs)} and outputs {sorted(graph_outputs)}"
        )


def read_input(request: Any, name: str) -> Any:
    """Return an input of one request, int32 [B,S], a view of Triton's memory."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def join(arrays: list[Any], dtype: Any) -> Any:
    """Return the arrays' rows as one array of `dtype`; the only array itself if it has that dtype."""
    array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return array.astype(dtype, copy=False)


def cpu_count() -> int:
    """Return how many CPUs this process may use at once, at least 1: its affinity, and its container's quota."""
    quota = cpu_quota()
    allowed = len(os.sched_getaffinity(0))
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota() -> float | None:
    """Return the CPUs that the control group (version 2, else 1) grants, or None where it sets no limit.

    Source: the Linux kernel's documentation, "cgroup-v2" (`cpu.max`) and "CFS Bandwidth Control".
    """
    try:
        quota, period = (CONTROL_GROUP / "cpu.max").read_text().split()
    except OSError:
        try:
            quota = (CONTROL_GROUP / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (CONTROL_GROUP / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    return None if quota in {"max", "-1"} else int(quota) / int(period)
