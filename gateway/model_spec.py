"""Reads what a model says of itself out of Triton's model configuration. Called by triton; pure."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway import contract
from gateway.contract import Pooling
from gateway.errors import StartupError
from gateway.types import ModelSpec, OutputKind

_INPUT_DTYPES = {"TYPE_INT32": np.dtype(np.int32), "TYPE_INT64": np.dtype(np.int64)}
_OUTPUT_TYPES = ("TYPE_FP32", "TYPE_FP16")
_OUTPUT_RANKS = {contract.LAST_HIDDEN_STATE: 2, contract.SENTENCE_EMBEDDING: 1}
"""Output name to the rank of its dims, batch axis left out."""


def parse_model_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Check a model's configuration and return what the gateway needs of it.

    Args:
        config: Triton's ModelConfig message as its JSON mapping, field names preserved.

    Raises:
        StartupError: the model does not keep the contract; the message names the tensor or parameter at fault.
    """
    name = config["name"]
    try:
        return _parse(name, config)
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"model {name}: {error.args[0]}") from error


def _parse(name: str, config: Mapping[str, Any]) -> ModelSpec:
    parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}

    def parameter(key: str) -> str:
        if key not in parameters:
            raise ValueError(f"config.pbtxt has no parameter {key!r}: build the model directory with engine_build")
        return str(parameters[key])

    def number(key: str) -> int:
        return int(parameter(key))

    if number(contract.PARAMETER_FORMAT) != contract.FORMAT_VERSION:
        raise ValueError(f"{contract.PARAMETER_FORMAT} is not {contract.FORMAT_VERSION}: build it again")
    hidden_size = number(contract.PARAMETER_HIDDEN_SIZE)
    output, kind = _output(config, hidden_size)
    buckets = tuple(map(int, parameter(contract.PARAMETER_LENGTH_BUCKETS).split(",")))
    max_sequence_length = number(contract.PARAMETER_MAX_SEQUENCE_LENGTH)
    if list(buckets) != sorted(set(buckets)) or buckets[0] < 1 or buckets[-1] < max_sequence_length:
        raise ValueError(f"length buckets {buckets} do not ascend to the longest sequence, {max_sequence_length}")
    return ModelSpec(
        name=name,
        inputs=_inputs(config),
        output=output,
        output_kind=kind,
        hidden_size=hidden_size,
        max_batch_size=_max_batch_size(config),
        max_sequence_length=max_sequence_length,
        length_buckets=buckets,
        pooling=Pooling(parameter(contract.PARAMETER_POOLING)),
        pad_id=number(contract.PARAMETER_PAD_ID),
        vocab_size=number(contract.PARAMETER_VOCAB_SIZE),
        prompts=json.loads(parameter(contract.PARAMETER_PROMPTS)),
        instances=_instances(config),
    )


def _max_batch_size(config: Mapping[str, Any]) -> int:
    size = int(config.get("max_batch_size", 0))
    if size < 1:
        raise ValueError("max_batch_size is 0: the gateway needs a model that batches")
    return size


def _inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return each input's dtype; token_type_ids may be there or not, any other difference is an error."""
    inputs = {}
    for tensor in config.get("input", []):
        if tensor["data_type"] not in _INPUT_DTYPES:
            raise ValueError(f"input {tensor['name']!r} is {tensor['data_type']}; INT32 or INT64 is needed")
        inputs[tensor["name"]] = _INPUT_DTYPES[tensor["data_type"]]
    needed = {contract.INPUT_IDS, contract.ATTENTION_MASK}
    if inputs.keys() - {contract.TOKEN_TYPE_IDS} != needed:
        raise ValueError(f"inputs are {sorted(inputs)}; {sorted(needed)} are needed, {contract.TOKEN_TYPE_IDS} may be")
    return inputs


def _output(config: Mapping[str, Any], hidden_size: int) -> tuple[str, OutputKind]:
    """Return the output to ask for, and its kind by its rank."""
    outputs = {tensor["name"]: tensor for tensor in config.get("output", [])}
    known = [name for name in _OUTPUT_RANKS if name in outputs]
    if len(known) != 1:
        raise ValueError(f"outputs are {sorted(outputs)}; exactly one of {sorted(_OUTPUT_RANKS)} is needed")
    name = known[0]
    dims = [int(size) for size in outputs[name]["dims"]]
    if outputs[name]["data_type"] not in _OUTPUT_TYPES:
        raise ValueError(f"output {name!r} is {outputs[name]['data_type']}; FP32 or FP16 is needed")
    if len(dims) != _OUTPUT_RANKS[name] or dims[-1] not in (-1, hidden_size):
        raise ValueError(f"output {name!r} has dims {dims}; {[-1, hidden_size][-_OUTPUT_RANKS[name] :]} are needed")
    return name, OutputKind.TOKEN_EMBEDDINGS if len(dims) == 2 else OutputKind.SENTENCE_EMBEDDING


def _instances(config: Mapping[str, Any]) -> int:
    """Count the engine's instances; on GPUs `count` is for each GPU."""
    groups = config.get("instance_group", [])
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups))
