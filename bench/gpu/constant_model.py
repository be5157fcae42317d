"""A Triton model that answers at once: every vector the same, of unit length. For what the gateway gives by itself.

Stands as model.py in a version folder, beside no engine, and takes and gives the tensors that config.pbtxt names.
"""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance."""

    def initialize(self, args: "dict[str, str]") -> None:
        """Make the largest answer once."""
        config = json.loads(args["model_config"])
        (output,) = config["output"]
        self._name = output["name"]
        self._dtype = pb_utils.triton_string_to_numpy(output["data_type"])
        self._hidden_size = int(output["dims"][-1])
        self._per_token = len(output["dims"]) == 2
        self._answer = self._make(1)

    def execute(self, requests: "list[Any]") -> "list[Any]":
        """Answer each request with a view of it."""
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self._name, self._take(one))]) for one in requests]

    def _take(self, request: Any) -> Any:
        rows, length = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().shape
        vectors = rows * length if self._per_token else rows
        if vectors > len(self._answer):
            self._answer = self._make(vectors)
        shape = (rows, length) if self._per_token else (rows,)
        return self._answer[:vectors].reshape(*shape, self._hidden_size)

    def _make(self, vectors: int) -> Any:
        return np.full((vectors, self._hidden_size), self._hidden_size**-0.5, self._dtype)
