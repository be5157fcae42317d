"""Makes Triton run every shape once before it calls a model ready. Called by model_config and the assemblies.

Each bucket is run with one row and with the largest batch, on real tokens. Triton repeats a sample of one row for the
rows of a batch and hands all of them over together, and takes of a longer file only as much as the sample's dims need
(observed, Triton 2.51): so one file for each input serves every shape.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as triton

from engine_build.recipe import Recipe
from gateway.contract import ATTENTION_MASK, INPUT_IDS

FOLDER = "warmup"
"""Where Triton looks for the files."""


def add_warm_up(config: Any, recipe: Recipe, dtype: int) -> None:
    """Name the samples in a ModelConfig message; `dtype` is the inputs' type there."""
    for rows in sorted({1, recipe.max_batch_size}):
        for length in recipe.length_buckets:
            sample = config.model_warmup.add(name=f"{rows}x{length}", batch_size=rows)
            for name in (INPUT_IDS, ATTENTION_MASK):
                sample.inputs[name].data_type = dtype
                sample.inputs[name].dims.append(length)
                sample.inputs[name].input_data_file = name


def write_warm_up(directory: Path, recipe: Recipe, ids: Sequence[int], dtype: int) -> None:
    """Write the files: real ids, repeated to the longest sequence, and a mask of ones."""
    kind = np.int64 if dtype == triton.TYPE_INT64 else np.int32
    (directory / FOLDER).mkdir()
    np.resize(np.array(ids, kind), recipe.max_sequence_length).tofile(directory / FOLDER / INPUT_IDS)
    np.ones(recipe.max_sequence_length, kind).tofile(directory / FOLDER / ATTENTION_MASK)
