"""config.pbtxt of both targets is the committed one, and says what Triton and the gateway need."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as triton

from engine_build.model_config import config_message, config_text
from engine_build.recipe import DEFAULT_MAX_BATCH_SIZES, Recipe, Target
from gateway import contract

GOLDEN = Path(__file__).parent / "golden"


def recipe(target: Target) -> Recipe:
    return Recipe(
        name="m3e-base",
        target=target,
        pooling=contract.Pooling.MEAN,
        normalize=False,
        hidden_size=768,
        vocab_size=21128,
        pad_id=0,
        max_sequence_length=512,
        length_buckets=(16, 32, 64, 128, 256, 512),
        prompts={"query": 'say "查询": ', "passage": ""},
        max_batch_size=DEFAULT_MAX_BATCH_SIZES[target],
    )


@pytest.mark.parametrize("target", list(Target))
def test_golden(target: Target) -> None:
    golden = (GOLDEN / f"{target}.pbtxt").read_text(encoding="utf-8")

    assert config_text(recipe(target)) == golden
    assert text_format.Parse(golden, triton.ModelConfig()) == config_message(recipe(target))


@pytest.mark.parametrize("target", list(Target))
def test_queue_is_bounded_and_refuses_at_once(target: Target) -> None:
    policy = config_message(recipe(target)).dynamic_batching.default_queue_policy

    assert policy.timeout_action == triton.ModelQueuePolicy.REJECT
    assert policy.max_queue_size > 0
    assert policy.default_timeout_microseconds > 0
    assert policy.allow_timeout_override


def test_every_parameter_of_the_contract_is_written() -> None:
    known = {value for name, value in vars(contract).items() if name.startswith("PARAMETER_")}

    assert set(config_message(recipe(Target.EMBEDDED)).parameters) == known
