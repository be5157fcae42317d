"""Profiles, and the graph's form: what is accepted, and that no batch of the gateway falls outside of all profiles."""

from dataclasses import replace

import pytest

from engine_build.engine_recipe import Profile, check_profiles, default_profile
from engine_build.errors import OptionError
from engine_build.model_folder import ModelFolder
from engine_build.precision import FloatType, Precision
from engine_build.recipe import Options, Target, plan, suited
from engine_build.tensorrt_version import parse_version
from gateway.contract import Pooling


def test_default_is_from_one_token_to_the_largest_batch() -> None:
    assert str(default_profile(64, 512)) == "1x1:64x128:64x512"
    assert str(default_profile(16, 64)) == "1x1:16x64:16x64"


@pytest.mark.parametrize("text", ["", "1x1", "1x1:2x2", "1x1:axb:4x4", "1x1x1:2x2:3x3", "1x1:2x2:3x3:4x4"])
def test_no_profile(text: str) -> None:
    with pytest.raises(OptionError, match="is no profile"):
        Profile.parse(text)


@pytest.mark.parametrize("text", ["0x1:2x2:3x3", "2x1:1x2:3x3", "1x1:4x2:3x3", "1x8:2x4:3x16"])
def test_profile_that_does_not_ascend(text: str) -> None:
    with pytest.raises(OptionError, match="must ascend"):
        Profile.parse(text)


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        pytest.param(["1x128:8x128:16x128"], "no profile takes one row of 1 tokens", id="7 tokens would be refused"),
        pytest.param(["8x1:8x16:16x512"], "no profile takes one row of 1 tokens", id="a lone text would be refused"),
        pytest.param(["1x1:8x16:16x256"], "no profile takes 512 tokens", id="too short"),
        pytest.param(["1x1:8x16:16x128", "1x200:8x256:16x512"], "one row of 129 tokens", id="gap"),
        pytest.param(["1x1:8x16:16x128", "1x1:8x256:8x512"], "largest batch, 16 rows", id="unequal batches"),
        pytest.param(["1x1:8x16:32x512"], "largest batch, 16 rows", id="not the largest batch"),
    ],
)
def test_profiles_that_leave_batches_out(profiles: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_profiles(tuple(map(Profile.parse, profiles)), 16, 512)


def test_profiles_may_meet_or_overlap() -> None:
    for texts in (["1x1:8x16:16x128", "1x129:8x256:16x512"], ["1x1:8x16:16x512", "1x1:16x512:16x512"]):
        check_profiles(tuple(map(Profile.parse, texts)), 16, 512)


def test_profile_sets_the_largest_batch(bert: ModelFolder) -> None:
    recipe = plan(bert, Options(target=Target.TENSORRT, profiles=(Profile.parse("1x1:8x32:24x64"),)))

    assert recipe.max_batch_size == 24
    assert recipe.graph.precision is Precision.FP16
    assert recipe.engine is not None


@pytest.mark.parametrize(
    ("version", "precision", "row_gelu"),
    [
        ("8.6.1", Precision.FP16, True),
        ("8.6.1", Precision.MIXED, True),
        ("8.6.1", Precision.FP32, False),
        ("10.13", Precision.FP16, False),
        ("11.1", Precision.MIXED, False),
    ],
)
def test_form_of_the_graph_by_version(version: str, precision: Precision, row_gelu: bool, bert: ModelFolder) -> None:
    recipe = plan(bert, Options(target=Target.TENSORRT, precision=precision))

    found = suited(recipe, parse_version(version))

    assert found.graph.row_gelu is row_gelu
    assert replace(found, graph=recipe.graph) == recipe


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(precision=Precision.FP16), "--precision fp16 is for --target tensorrt"),
        (Options(profiles=(Profile.parse("1x1:8x32:24x64"),)), "--profile is for --target tensorrt"),
        (Options(output=FloatType.BF16), "outputs are fp32 or fp16"),
    ],
)
def test_options_that_contradict(options: Options, message: str, bert: ModelFolder) -> None:
    with pytest.raises(OptionError, match=message):
        plan(bert, options)


def test_pooling_in_the_engine(bert: ModelFolder) -> None:
    assert plan(bert, Options(pool_in_engine=True)).graph.pooling is Pooling.MEAN
    assert plan(bert, Options()).graph.pooling is None
