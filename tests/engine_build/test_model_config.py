"""config.pbtxt of both targets is the committed one, and says what Triton and the gateway need."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as triton

from engine_build.engine_recipe import EngineRecipe, Profile
from engine_build.errors import EngineError
from engine_build.model_config import config_message, config_text, input_type
from engine_build.plan_facts import PlanFacts, Tensor
from engine_build.precision import FloatType, GraphForm, Precision
from engine_build.recipe import DEFAULT_MAX_BATCH_SIZES, Instances, Recipe, Target
from gateway import contract
from gateway.model_spec import parse_model_spec

GOLDEN = Path(__file__).parent / "golden"


def recipe(target: Target, **changes: Any) -> Recipe:
    plain = Recipe(
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
    return replace(plain, **changes)


def facts(
    ids: str = "int32",
    output: tuple[str, str, tuple[int, ...]] = ("last_hidden_state", "float32", (-1, -1, 768)),
    rows: tuple[int, ...] = (64,),
    length: int = 512,
) -> PlanFacts:
    names = (contract.INPUT_IDS, contract.ATTENTION_MASK)
    tensors = (*(Tensor(name, True, ids, (-1, -1)) for name in names), Tensor(output[0], False, output[1], output[2]))
    return PlanFacts(tensors, tuple(dict.fromkeys(names, ((1, 1), (8, 64), (most, length))) for most in rows))


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


def test_tensors_are_the_plans() -> None:
    config = config_message(recipe(Target.TENSORRT), facts("int64"))

    assert {one.data_type for one in config.input} == {triton.TYPE_INT64}
    assert {one.inputs["input_ids"].data_type for one in config.model_warmup} == {triton.TYPE_INT64}
    assert input_type(facts("int64")) == triton.TYPE_INT64


@pytest.mark.parametrize("kind", ["gateway", "engine"])
@pytest.mark.parametrize("output", [FloatType.FP32, FloatType.FP16])
def test_the_gateway_reads_what_is_written(kind: str, output: FloatType) -> None:
    pooling = contract.Pooling.MEAN if kind == "engine" else None
    form = GraphForm(Precision.FP16, output, pooling)
    made = recipe(Target.TENSORRT, graph=form, instances=Instances(3, (0, 1)))
    config = json_format.MessageToDict(config_message(made), preserving_proto_field_name=True)

    spec = parse_model_spec(config)

    assert spec.output == ("sentence_embedding" if pooling else "last_hidden_state")
    assert (spec.max_batch_size, spec.max_sequence_length, spec.instances) == (64, 512, 6)


def test_warm_up_runs_every_bucket_with_one_row_and_with_most() -> None:
    config = config_message(recipe(Target.TENSORRT))

    shapes = {(one.batch_size, *(tensor.dims[0] for tensor in one.inputs.values())) for one in config.model_warmup}
    assert shapes == {(rows, length, length) for rows in (1, 64) for length in (16, 32, 64, 128, 256, 512)}
    assert all(one.inputs[name].input_data_file == name for one in config.model_warmup for name in one.inputs)


def test_several_profiles_are_named_to_triton() -> None:
    profiles = (Profile.parse("1x1:64x64:64x128"), Profile.parse("1x1:16x384:64x512"))
    config = config_message(recipe(Target.TENSORRT, engine=EngineRecipe(profiles)), facts(rows=(64, 64)))

    assert list(config.instance_group[0].profile) == ["0", "1"]


def test_cuda_graphs_stay_off_and_one_version_is_served() -> None:
    config = config_message(recipe(Target.TENSORRT, instances=Instances(1, (), True)))

    assert not config.optimization.cuda.graphs
    assert config.optimization.cuda.busy_wait_events
    assert config.version_policy.latest.num_versions == 1


@pytest.mark.parametrize(
    ("found", "message"),
    [
        pytest.param(facts(rows=(32,)), "takes 32 rows, the recipe says 64", id="batch"),
        pytest.param(facts(rows=(64, 32)), r"profiles end at \[32, 64\] rows", id="profiles differ"),
        pytest.param(facts(length=128), "takes 128 tokens, the recipe says 512", id="length"),
        pytest.param(facts("bool"), "input_ids of the plan is bool, which the gateway does not take", id="type"),
        pytest.param(facts(output=("logits", "float32", (-1, -1, 768))), "gives .*logits", id="output"),
        pytest.param(facts(output=("last_hidden_state", "float32", (-1, -1, 384))), "384", id="size"),
        pytest.param(facts(output=("last_hidden_state", "float32", (-1, 768))), "are due", id="rank"),
    ],
)
def test_a_plan_of_another_recipe(found: PlanFacts, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        config_message(recipe(Target.TENSORRT), found)
