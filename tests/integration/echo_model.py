"""A model on the real Triton whose answer is computed from its ids, so that another call's answer shows.

The first id of a row says how many milliseconds the model sleeps before it answers, or that it misbehaves.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.types import Batch, Int32Array

HIDDEN_SIZE = 64
LONGEST = 512
MOST_ROWS = 8
WIDER, NARROWER = 1000, 1001
"""First ids that make it answer a tensor of another width."""

_MODEL = f"""
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        told = int(ids[0, 0])
        if told < {WIDER}:
            time.sleep(told / 1000)
        width = {HIDDEN_SIZE} + (told == {WIDER}) - (told == {NARROWER})
        hidden = (ids[:, :, None] + np.arange(width)).astype(np.DTYPE)
        return pb_utils.InferenceResponse([pb_utils.Tensor("last_hidden_state", hidden)])
"""

_CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: {most_rows}
input [
  {{ name: "input_ids" data_type: TYPE_INT32 dims: [-1] }},
  {{ name: "attention_mask" data_type: TYPE_INT32 dims: [-1] }}
]
output [ {{ name: "last_hidden_state" data_type: {data_type} dims: [-1, -1] }} ]
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
{parameters}
"""

_PARAMETERS = {
    "format": "1",
    "pooling": "mean",
    "hidden_size": str(HIDDEN_SIZE),
    "max_sequence_length": str(LONGEST),
    "length_buckets": f"16,64,{LONGEST}",
    "pad_id": "0",
    "vocab_size": "2000",
    "prompts": "{}",
}


def write_echo_model(repository: Path, name: str, dtype: str) -> None:
    """Write its directory; `dtype` is numpy's name of the output's, float32 or float16."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_MODEL.replace("DTYPE", dtype))
    parameters = "\n".join(
        f'parameters {{ key: "embedding.{key}" value {{ string_value: "{value}" }} }}'
        for key, value in _PARAMETERS.items()
    )
    data_type = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}[dtype]
    config = _CONFIG.format(name=name, most_rows=MOST_ROWS, data_type=data_type, parameters=parameters)
    (folder / "config.pbtxt").write_text(config)


def make_batch(rows: int, length: int, seed: int, first_id: int = 0) -> Batch:
    """Return a batch of random ids, so small that the answer is exact in float16 too."""
    ids: Int32Array = np.random.default_rng(seed).integers(1, 900, (rows, length), np.int32)
    ids[0, 0] = first_id
    return Batch(ids, np.ones_like(ids))


def expected(batch: Batch) -> NDArray[Any]:
    """Return the right answer to a batch, int64 [B,S,H]."""
    return batch.input_ids[:, :, None] + np.arange(HIDDEN_SIZE)
