"""What is decided from folder and options."""

from pathlib import Path
from typing import Any

import pytest

from engine_build.errors import OptionError, UnsupportedModelError
from engine_build.model_folder import ModelFolder, read_model_folder
from engine_build.recipe import Options, Target, plan
from engine_build.sequence_limit import length_buckets
from gateway.contract import Pooling
from tests.engine_build.tiny import CopyFolder


def test_defaults(bert: ModelFolder) -> None:
    recipe = plan(bert, Options())

    assert recipe.name == "bert"
    assert (recipe.hidden_size, recipe.vocab_size, recipe.pad_id) == (32, 320, 0)
    assert (recipe.max_sequence_length, recipe.length_buckets) == (64, (16, 32, 48, 64))
    assert (recipe.max_batch_size, recipe.instances.count) == (32, 2)
    assert plan(bert, Options(target=Target.TENSORRT)).max_batch_size == 64


def test_options_win(bert: ModelFolder) -> None:
    options = Options(
        name="other",
        max_batch_size=8,
        max_sequence_length=40,
        length_buckets=(10, 40),
        pooling=Pooling.CLS,
        prompts={"query": "q: "},
    )

    recipe = plan(bert, options)

    assert recipe.name == "other"
    assert recipe.pooling is Pooling.CLS
    assert (recipe.max_batch_size, recipe.max_sequence_length, recipe.length_buckets) == (8, 40, (10, 40))
    assert recipe.prompts == {"query": "q: "}


@pytest.mark.parametrize(
    ("limit", "buckets"),
    [
        (512, (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)),
        (256, (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
        (514, (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 514)),
        (300, (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 300)),
        (17, (16, 17)),
        (16, (16,)),
        (5, (5,)),
        (1, (1,)),
    ],
)
def test_length_buckets(limit: int, buckets: tuple[int, ...]) -> None:
    assert length_buckets(limit) == buckets


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"max_sequence_length": 65}, "more than the model's 64 positions", id="length"),
        pytest.param({"length_buckets": (16, 32)}, "must be the longest sequence, 64, not 32", id="short"),
        pytest.param({"length_buckets": (16, 128)}, "must be the longest sequence, 64, not 128", id="long"),
        pytest.param({"length_buckets": (64, 16, 64)}, "must ascend", id="order"),
        pytest.param({"length_buckets": (16, 16, 64)}, "must ascend", id="twice"),
        pytest.param({"name": "../x"}, "no model name", id="path"),
        pytest.param({"name": ""}, "no model name", id="empty"),
        pytest.param({"name": ".hidden"}, "no model name", id="hidden"),
        pytest.param({"name": "a b"}, "no model name", id="space"),
        pytest.param({"name": "名"}, "no model name", id="script"),
    ],
)
def test_options_refused(options: dict[str, Any], message: str, bert: ModelFolder) -> None:
    with pytest.raises(OptionError, match=message):
        plan(bert, Options(**options))


def test_longer_than_the_folder_says_is_possible_up_to_the_positions(copy_folder: CopyFolder) -> None:
    folder = read_model_folder(copy_folder(files={"sentence_bert_config.json": {"max_seq_length": 20}}))

    assert plan(folder, Options()).max_sequence_length == 20
    assert plan(folder, Options(max_sequence_length=64)).length_buckets == (16, 32, 48, 64)


def test_name_is_the_folders_own(
    bert: ModelFolder, copy_folder: CopyFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(bert.path)
    assert plan(read_model_folder(tmp_path / "link"), Options()).name == "link"
    monkeypatch.chdir(copy_folder())
    assert plan(read_model_folder(Path()), Options()).name == "tiny-bert"


@pytest.mark.parametrize(
    ("stored", "given", "expected"),
    [
        pytest.param({"query": "q", "passage": "p"}, {}, {"query": "q", "passage": "p", "document": "p"}, id="passage"),
        pytest.param({"document": "d"}, {}, {"passage": "d", "document": "d"}, id="document"),
        pytest.param({"document": "d", "passage": "p"}, {}, {"document": "d", "passage": "p"}, id="both"),
        pytest.param({"query": "q"}, {}, {"query": "q"}, id="neither"),
        pytest.param({"query": "q"}, {"query": "x", "a": "b"}, {"query": "x", "a": "b"}, id="given wins"),
    ],
)
def test_prompts(
    stored: dict[str, str], given: dict[str, str], expected: dict[str, str], copy_folder: CopyFolder
) -> None:
    path = copy_folder(files={"config_sentence_transformers.json": {"prompts": stored}})

    assert plan(read_model_folder(path), Options(prompts=given)).prompts == expected


def test_prompts_left_out_of_pooling(copy_folder: CopyFolder) -> None:
    module = "sentence_transformers.models"
    path = copy_folder(
        files={
            "modules.json": [
                {"path": "", "type": f"{module}.Transformer"},
                {"path": "1_Pooling", "type": f"{module}.Pooling"},
            ],
            "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
        }
    )
    folder = read_model_folder(path)

    assert plan(folder, Options()).prompts == {}
    with pytest.raises(UnsupportedModelError, match="pooling leaves out the prompt's tokens"):
        plan(folder, Options(prompts={"query": "q: "}))
