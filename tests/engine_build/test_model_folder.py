"""What a folder says: each form that sentence-transformers has stored over time, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from engine_build.errors import ModelFolderError, UnsupportedModelError
from engine_build.model_folder import read_model_folder
from gateway.contract import Pooling
from tests.engine_build.tiny import CopyFolder, change_json

PACKAGE = "sentence_transformers.models"
NEW_PACKAGE = "sentence_transformers.sentence_transformer.modules.pooling"


def modules(*kinds: str, encoder_path: str = "") -> list[dict[str, Any]]:
    """modules.json of these classes, each in the folder that sentence-transformers would give it."""
    paths = [encoder_path, *(f"{place}_{kind.rpartition('.')[2]}" for place, kind in enumerate(kinds[1:], 1))]
    names = [kind if "." in kind else f"{PACKAGE}.{kind}" for kind in kinds]
    return [
        {"idx": place, "name": str(place), "path": path, "type": name}
        for place, (path, name) in enumerate(zip(paths, names, strict=True))
    ]


def boolean(*modes: str) -> dict[str, Any]:
    known = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": 32} | {f"pooling_mode_{mode}": mode in modes for mode in known}


def files(pooling: dict[str, Any], *kinds: str, **others: Any) -> dict[str, Any]:
    return {"modules.json": modules("Transformer", "Pooling", *kinds), "1_Pooling/config.json": pooling} | others


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        pytest.param(boolean("mean_tokens"), Pooling.MEAN, id="mean"),
        pytest.param(boolean("cls_token"), Pooling.CLS, id="cls"),
        pytest.param(boolean("max_tokens"), Pooling.MAX, id="max"),
        pytest.param(boolean("lasttoken"), Pooling.LAST_TOKEN, id="last token"),
        pytest.param(boolean(), Pooling.MEAN, id="none is mean"),
        pytest.param({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}, Pooling.MEAN, id="2019"),
        pytest.param({"embedding_dimension": 32, "pooling_mode": "cls"}, Pooling.CLS, id="named cls"),
        pytest.param({"embedding_dimension": 32, "pooling_mode": ["lasttoken"]}, Pooling.LAST_TOKEN, id="list of one"),
        pytest.param(boolean("cls_token") | {"pooling_mode": "mean"}, Pooling.MEAN, id="named wins"),
    ],
)
def test_pooling_forms(pooling: dict[str, Any], expected: Pooling, copy_folder: CopyFolder) -> None:
    folder = read_model_folder(copy_folder(files=files(pooling)))

    assert folder.pipeline.pooling is expected
    assert not folder.pipeline.normalize


@pytest.mark.parametrize(
    "pooling",
    [
        boolean("mean_sqrt_len_tokens"),
        boolean("weightedmean_tokens"),
        boolean("cls_token", "mean_tokens"),
        {"pooling_mode": ["mean", "max"]},
        {"pooling_mode": "something new"},
    ],
)
def test_pooling_that_the_gateway_lacks(pooling: dict[str, Any], copy_folder: CopyFolder) -> None:
    path = copy_folder(files=files(pooling))

    with pytest.raises(UnsupportedModelError, match=r"1_Pooling/config\.json: pooling .* is not supported"):
        read_model_folder(path)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Pooling", "Dense"),
        ("Transformer", "Pooling", "Dense", "Normalize"),
        ("Transformer", "WordWeights", "Pooling"),
        ("Transformer",),
        ("StaticEmbedding",),
        ("custom_st.Transformer", "Pooling"),
    ],
)
def test_pipeline_that_the_gateway_lacks(kinds: tuple[str, ...], copy_folder: CopyFolder) -> None:
    path = copy_folder(files={"modules.json": modules(*kinds)})

    with pytest.raises(UnsupportedModelError, match=f"the pipeline {' -> '.join(kinds)} is not supported"):
        read_model_folder(path)


def test_normalize_and_names_of_newer_modules(copy_folder: CopyFolder) -> None:
    kinds = ("sentence_transformers.base.modules.transformer.Transformer", f"{NEW_PACKAGE}.Pooling")
    normalize = "sentence_transformers.base.modules.normalize.Normalize"
    path = copy_folder(
        files={
            "modules.json": modules(*kinds, normalize),
            "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": "mean"},
            "2_Normalize/config.json": {"module_input_name": "sentence_embedding", "module_output_name": None},
        }
    )

    assert read_model_folder(path).pipeline.normalize


def test_normalize_of_something_else(copy_folder: CopyFolder) -> None:
    normalize = {"2_Normalize/config.json": {"module_input_name": "token_embeddings"}}
    path = copy_folder(files=files(boolean("mean_tokens"), "Normalize") | normalize)

    with pytest.raises(UnsupportedModelError, match="only sentence embeddings are normalised"):
        read_model_folder(path)


def test_encoder_in_a_folder_of_its_own(copy_folder: CopyFolder) -> None:
    inner = copy_folder()
    path = inner.parent / "outer"
    path.mkdir()
    inner.rename(path / "0_Transformer")
    change_json(path / "modules.json", modules("Transformer", "Pooling", encoder_path="0_Transformer"))
    change_json(path / "1_Pooling" / "config.json", boolean("mean_tokens"))
    change_json(path / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 48})

    folder = read_model_folder(path)

    assert folder.encoder_path == path / "0_Transformer"
    assert folder.limit.tokens == 48


def test_plain_folder_is_mean_pooling(copy_folder: CopyFolder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    folder = read_model_folder(copy_folder())

    assert (folder.pipeline.pooling, folder.pipeline.normalize) == (Pooling.MEAN, False)
    assert "no modules.json: mean pooling and no normalisation" in caplog.text


@pytest.mark.parametrize(
    ("kind", "changes", "tokens"),
    [
        pytest.param("bert", {}, 64, id="positions"),
        pytest.param("roberta", {}, 64, id="positions without the offset"),
        pytest.param("roberta", {"config.json": {"pad_token_id": 3}}, 62, id="offset follows the pad id"),
        pytest.param("roberta", {"config.json": {"pad_token_id": None}}, 64, id="offset where no pad id is given"),
        pytest.param("mpnet", {}, 64, id="mpnet has the offset too"),
        pytest.param("bert", {"sentence_bert_config.json": {"max_seq_length": 20}}, 20, id="sentence_bert_config"),
        pytest.param("bert", {"sentence_roberta_config.json": {"max_seq_length": 20}}, 20, id="an older name of it"),
        pytest.param("bert", {"sentence_bert_config.json": {"max_seq_length": 1024}}, 64, id="above positions"),
        pytest.param("bert", {"tokenizer_config.json": {"model_max_length": 10**30}}, 64, id="sentinel"),
        pytest.param("bert", {"tokenizer_config.json": {"model_max_length": 1e30}}, 64, id="sentinel as float"),
        pytest.param("bert", {"tokenizer_config.json": {"model_max_length": None}}, 64, id="tokenizer does not say"),
        pytest.param("bert", {"tokenizer_config.json": {"model_max_length": 32}}, 32, id="tokenizer"),
        pytest.param("bert", {"config.json": {"max_position_embeddings": -1}}, 64, id="no positions"),
    ],
)
def test_limit(kind: str, changes: dict[str, Any], tokens: int, copy_folder: CopyFolder) -> None:
    assert read_model_folder(copy_folder(kind, files=changes)).limit.tokens == tokens


def test_no_limit_anywhere(copy_folder: CopyFolder) -> None:
    path = copy_folder("roberta", files={"config.json": {"max_position_embeddings": None}})

    with pytest.raises(ModelFolderError, match="no file names the longest sequence"):
        read_model_folder(path)


def test_no_room_for_a_token(copy_folder: CopyFolder) -> None:
    path = copy_folder("roberta", files={"config.json": {"max_position_embeddings": 2}})

    with pytest.raises(ModelFolderError, match="max_position_embeddings leaves no room"):
        read_model_folder(path)


@pytest.mark.parametrize(
    ("changes", "pad_id"),
    [
        pytest.param({}, 0, id="config"),
        pytest.param({"config.json": {"pad_token_id": 5}}, 5, id="config wins"),
        pytest.param({"config.json": {"pad_token_id": None}}, 0, id="tokenizer"),
        pytest.param(
            {"config.json": {"pad_token_id": None}, "tokenizer_config.json": {"pad_token": {"content": "[MASK]"}}},
            4,
            id="tokenizer, as an object",
        ),
    ],
)
def test_pad_id(changes: dict[str, Any], pad_id: int, copy_folder: CopyFolder) -> None:
    assert read_model_folder(copy_folder(files=changes)).pad_id == pad_id


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"config.json": {"pad_token_id": 320}}, ModelFolderError, "pad id 320 is not one", id="pad"),
        pytest.param(
            {"config.json": {"pad_token_id": None}, "tokenizer_config.json": {"pad_token": None}},
            ModelFolderError,
            "name the pad id",
            id="no pad",
        ),
        pytest.param({"config.json": {"model_type": None}}, ModelFolderError, "no `model_type`", id="type"),
        pytest.param({"config.json": {"hidden_size": None}}, ModelFolderError, "no `hidden_size`", id="size"),
        pytest.param({"config.json": {"auto_map": {}}}, UnsupportedModelError, "it is not run", id="remote code"),
        pytest.param(
            {"config.json": {"position_embedding_type": "alibi"}}, UnsupportedModelError, "type alibi", id="alibi"
        ),
        pytest.param(
            {"sentence_bert_config.json": {"transformer_task": "fill-mask"}},
            UnsupportedModelError,
            "transformer_task fill-mask",
            id="task",
        ),
        pytest.param(files({"embedding_dimension": 99}), ModelFolderError, "expects 99 dimensions", id="dimensions"),
        pytest.param({"modules.json": {"a": 1}}, ModelFolderError, "not a list of modules", id="modules"),
        pytest.param({"modules.json": [{"idx": 0}]}, ModelFolderError, "not a list of modules", id="module"),
        pytest.param(
            {"modules.json": modules("Transformer", "Pooling", encoder_path="../x")},
            ModelFolderError,
            "inside the folder",
            id="module elsewhere",
        ),
        pytest.param({"config.json": [1]}, ModelFolderError, "holds no JSON object", id="list"),
        pytest.param(
            {"modules.json": modules("Transformer", "Pooling")},
            ModelFolderError,
            r"missing file: .*1_Pooling/config\.json",
            id="pooling missing",
        ),
    ],
)
def test_refused(changes: dict[str, Any], error: type[Exception], message: str, copy_folder: CopyFolder) -> None:
    path = copy_folder(files=changes)

    with pytest.raises(error, match=message):
        read_model_folder(path)


def test_missing_folder_and_files(tmp_path: Path, copy_folder: CopyFolder) -> None:
    with pytest.raises(ModelFolderError, match=r"no such folder: .*nowhere .*nothing is downloaded"):
        read_model_folder(tmp_path / "nowhere")
    path = copy_folder()
    (path / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"cannot read .*config\.json"):
        read_model_folder(path)
    (path / "config.json").unlink()
    with pytest.raises(ModelFolderError, match=r"missing file: .*config\.json"):
        read_model_folder(path)


@pytest.mark.parametrize(
    ("stored", "prompts"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"query": "query: ", "passage": "passage: "}, None, id="own names"),
        pytest.param({"query": "q: ", "document": ""}, None, id="empty is kept"),
        pytest.param({"query": "q: ", "document": None}, {"query": "q: "}, id="null is not"),
        pytest.param({"STS": "Instruct: ", "问": "问:"}, None, id="any name"),
    ],
)
def test_prompts(stored: dict[str, Any], prompts: dict[str, str] | None, copy_folder: CopyFolder) -> None:
    path = copy_folder(files={"config_sentence_transformers.json": {"prompts": stored}})

    assert read_model_folder(path).prompts == (stored if prompts is None else prompts)


@pytest.mark.parametrize("stored", [["query"], {"query": 5}, "query"])
def test_prompts_that_are_no_texts(stored: Any, copy_folder: CopyFolder) -> None:
    path = copy_folder(files={"config_sentence_transformers.json": {"prompts": stored}})

    with pytest.raises(ModelFolderError, match="not an object of texts"):
        read_model_folder(path)


def test_defaults_that_are_not_applied_are_named(copy_folder: CopyFolder, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"default_prompt_name": "query", "prompts": {"query": "q: "}, "truncate_dim": 16}

    read_model_folder(copy_folder(files={"config_sentence_transformers.json": settings}))

    assert "default prompt 'query' is not applied" in caplog.text
    assert "truncate_dim 16 is not applied" in caplog.text
