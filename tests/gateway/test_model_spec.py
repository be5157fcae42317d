import copy
from typing import Any

import numpy as np
import pytest

from gateway.contract import Pooling
from gateway.errors import StartupError
from gateway.model_spec import parse_model_spec
from gateway.types import OutputKind

# As Triton 2.51 answers it, through tritonclient's as_json.
CONFIG: dict[str, Any] = {
    "name": "m3e-base",
    "max_batch_size": 64,
    "input": [
        {"name": "input_ids", "data_type": "TYPE_INT32", "dims": ["-1"]},
        {"name": "attention_mask", "data_type": "TYPE_INT32", "dims": ["-1"]},
    ],
    "output": [{"name": "last_hidden_state", "data_type": "TYPE_FP32", "dims": ["-1", "768"]}],
    "instance_group": [{"name": "m3e-base_0", "kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}],
    "parameters": {
        key: {"string_value": value}
        for key, value in {
            "embedding.format": "1",
            "embedding.pooling": "mean",
            "embedding.normalize": "false",
            "embedding.hidden_size": "768",
            "embedding.max_sequence_length": "500",
            "embedding.length_buckets": "16,128,512",
            "embedding.pad_id": "0",
            "embedding.vocab_size": "21128",
            "embedding.prompts": '{"query":"query: "}',
        }.items()
    },
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CONFIG), **changes}


def with_parameter(name: str, value: str) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    config["parameters"][f"embedding.{name}"] = {"string_value": value}
    return config


def test_all_of_it_is_read() -> None:
    spec = parse_model_spec(CONFIG)
    assert spec.name == "m3e-base"
    assert spec.inputs == {"input_ids": np.dtype(np.int32), "attention_mask": np.dtype(np.int32)}
    assert (spec.output, spec.output_kind) == ("last_hidden_state", OutputKind.TOKEN_EMBEDDINGS)
    assert (spec.hidden_size, spec.max_batch_size, spec.max_sequence_length) == (768, 64, 500)
    assert (spec.length_buckets, spec.pooling) == ((16, 128, 512), Pooling.MEAN)
    assert (spec.pad_id, spec.vocab_size, spec.prompts) == (0, 21128, {"query": "query: "})
    assert spec.instances == 4  # two on each of two GPUs


def test_rank_two_is_pooled_already() -> None:
    outputs = [{"name": "sentence_embedding", "data_type": "TYPE_FP16", "dims": ["768"]}]
    spec = parse_model_spec(changed(output=outputs))
    assert (spec.output, spec.output_kind) == ("sentence_embedding", OutputKind.SENTENCE_EMBEDDING)


def test_wide_ids_and_token_types_are_taken_as_the_model_has_them() -> None:
    inputs = [
        {"name": name, "data_type": "TYPE_INT64", "dims": ["-1"]}
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    assert set(parse_model_spec(changed(input=inputs)).inputs.values()) == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("groups", "instances"),
    [([], 1), ([{"kind": "KIND_CPU", "count": 2}], 2), ([{"count": 1, "gpus": [0]}, {"count": 2, "gpus": [1]}], 3)],
)
def test_instances(groups: list[dict[str, Any]], instances: int) -> None:
    assert parse_model_spec(changed(instance_group=groups)).instances == instances


IDS, MASK = CONFIG["input"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(changed(parameters={}), "no parameter 'embedding.format'", id="hand-written"),
        pytest.param(with_parameter("format", "2"), "embedding.format is not 1", id="of another version"),
        pytest.param(with_parameter("pooling", "median"), "median", id="unknown pooling"),
        pytest.param(with_parameter("length_buckets", "16,128"), "do not ascend to", id="buckets end too early"),
        pytest.param(with_parameter("length_buckets", "128,16,512"), "do not ascend", id="buckets out of order"),
        pytest.param(changed(max_batch_size=0), "max_batch_size is 0", id="no batches"),
        pytest.param(changed(input=[IDS]), "attention_mask", id="no mask"),
        pytest.param(changed(input=[IDS, MASK, {**IDS, "name": "pixels"}]), "pixels", id="unknown input"),
        pytest.param(changed(input=[IDS, {**MASK, "data_type": "TYPE_FP32"}]), "TYPE_FP32", id="mask of floats"),
        pytest.param(
            changed(output=[{"name": "logits", "data_type": "TYPE_FP32", "dims": ["-1", "768"]}]),
            r"outputs are \['logits'\]",
            id="output of another name",
        ),
        pytest.param(
            changed(output=[{"name": "last_hidden_state", "data_type": "TYPE_FP32", "dims": ["768"]}]),
            r"dims \[768\]; \[-1, 768\] are needed",
            id="output of another rank",
        ),
        pytest.param(
            changed(output=[{"name": "last_hidden_state", "data_type": "TYPE_FP32", "dims": ["-1", "384"]}]),
            r"dims \[-1, 384\]",
            id="output of another width",
        ),
        pytest.param(
            changed(output=[{"name": "last_hidden_state", "data_type": "TYPE_INT8", "dims": ["-1", "768"]}]),
            "TYPE_INT8",
            id="output of another type",
        ),
    ],
)
def test_what_does_not_keep_the_contract_stops_the_start(config: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        parse_model_spec(config)
    assert str(caught.value).startswith("model m3e-base: ")
    assert "\n" not in str(caught.value)
