"""Graphs of every architecture: equal to torch on padded batches, in the form that every TensorRT from 8.6 reads."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from engine_build import build_extra, graph
from engine_build.architecture import bert_architecture
from engine_build.errors import ExportError, MissingExtraError, ModelFolderError
from engine_build.export import export_onnx, make_graph
from engine_build.model_folder import read_model_folder
from engine_build.numpy_bert import ACTIVATION_FUNCTIONS, NumpyBert, erf
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.reference import ReferenceKind
from engine_build.tokenizer import open_tokenizer
from engine_build.torch_encoder import load_torch_encoder
from engine_build.verify import padded_batch, verify
from engine_build.weights import read_weights
from tests.engine_build.tiny import CopyFolder, make_folder, tiny_model, word_piece

BERT_KINDS = ("bert", "roberta", "xlm-roberta", "camembert")
TRACED_KINDS = ("distilbert", "mpnet")


@pytest.mark.parametrize("kind", [*BERT_KINDS, *TRACED_KINDS])
def test_graph_equals_torch(kind: str, model_folders: Mapping[str, Path], tmp_path: Path) -> None:
    folder = read_model_folder(model_folders[kind])
    export_onnx(folder, tmp_path / "model.onnx")
    tokenizer = open_tokenizer(folder.encoder_path / "tokenizer.json")

    result = verify(folder, tmp_path / "model.onnx", tokenizer, ReferenceKind.TORCH)

    assert result.max_difference < 5e-5
    assert result.shapes == ((5, 48), (2, 16), (1, 64))
    assert result.as_json()["token_ids_compared"]


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_file_has_the_form_tensorrt_reads(kind: str, model_folders: Mapping[str, Path], tmp_path: Path) -> None:
    export_onnx(read_model_folder(model_folders[kind]), tmp_path / "model.onnx")

    model = onnx.load(tmp_path / "model.onnx")

    assert [entry.version for entry in model.opset_import if not entry.domain] == [17]
    assert model.ir_version == 8
    assert {tensor.name: tensor.type.tensor_type.elem_type for tensor in model.graph.input} == {
        "input_ids": onnx.TensorProto.INT32,
        "attention_mask": onnx.TensorProto.INT32,
    }
    (output,) = model.graph.output
    assert output.name == "last_hidden_state"
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_clean_graph_reshapes_name_every_size(model_folders: Mapping[str, Path]) -> None:
    model = make_graph(read_model_folder(model_folders["bert"]))
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    shapes = {tuple(constants[node.input[1]]) for node in model.graph.node if node.op_type == "Reshape"}

    assert shapes == {(0, 0, 4, 8), (0, 0, 32)}
    assert sum(node.op_type == "LayerNormalization" for node in model.graph.node) == 5


@pytest.mark.parametrize("kind", [*BERT_KINDS, *TRACED_KINDS])
def test_ids_under_padding_do_not_matter(kind: str, model_folders: Mapping[str, Path], tmp_path: Path) -> None:
    folder = read_model_folder(model_folders[kind])
    export_onnx(folder, tmp_path / "model.onnx")
    encoder = OnnxEncoder(tmp_path / "model.onnx")
    ids, mask = padded_batch((4, 20), folder.vocab_size, folder.pad_id, np.random.default_rng(1))

    clean = encoder.run(ids, mask)
    other = encoder.run(np.where(mask == 1, ids, np.int32(0)), mask)

    np.testing.assert_allclose(other[mask == 1], clean[mask == 1], atol=1e-5)


def test_sequence_beyond_the_last_position_fails(model_folders: Mapping[str, Path], tmp_path: Path) -> None:
    export_onnx(read_model_folder(model_folders["roberta"]), tmp_path / "model.onnx")
    ids = np.full((1, 65), 9, np.int32)

    with pytest.raises(Exception, match="65"):
        OnnxEncoder(tmp_path / "model.onnx").run(ids, np.ones_like(ids))


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu"])
def test_other_activations(activation: str, tmp_path: Path) -> None:
    path = make_folder(tmp_path / "tiny", tiny_model("bert", hidden_act=activation), word_piece())
    folder = read_model_folder(path)
    assert bert_architecture(folder.config) is not None
    export_onnx(folder, tmp_path / "model.onnx")
    tokenizer = open_tokenizer(path / "tokenizer.json")

    for kind in (ReferenceKind.TORCH, ReferenceKind.NUMPY):
        assert verify(folder, tmp_path / "model.onnx", tokenizer, kind).max_difference < 5e-5


def test_unknown_activation_goes_through_torch(copy_folder: CopyFolder) -> None:
    folder = read_model_folder(copy_folder(files={"config.json": {"hidden_act": "silu"}}))

    assert make_graph(folder).producer_name == "pytorch"


@pytest.mark.parametrize("kind", BERT_KINDS)
def test_numpy_reference_equals_torch(kind: str, model_folders: Mapping[str, Path]) -> None:
    folder = read_model_folder(model_folders[kind])
    architecture = bert_architecture(folder.config)
    assert architecture is not None
    ids = list(range(2, 66))

    ours = NumpyBert(architecture, read_weights(folder.weight_files)).token_embeddings(ids)

    np.testing.assert_allclose(ours, load_torch_encoder(folder).token_embeddings(ids), atol=5e-5)


def test_activation_functions_equal_torch() -> None:
    x = np.linspace(-6, 6, 301, dtype=np.float32)

    np.testing.assert_allclose(erf(x), [math.erf(value) for value in x], atol=3e-7)
    for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        expected = torch.nn.functional.gelu(torch.from_numpy(x), approximate=approximate).numpy()
        np.testing.assert_allclose(ACTIVATION_FUNCTIONS[name](x), expected, atol=1e-5)


def test_weights_too_large_for_one_file(monkeypatch: pytest.MonkeyPatch, model_folders: Mapping[str, Path]) -> None:
    monkeypatch.setattr(graph, "MAX_WEIGHTS_BYTES", 1000)

    for kind in ("bert", "distilbert"):
        with pytest.raises(ExportError, match="less than 2 GiB"):
            make_graph(read_model_folder(model_folders[kind]))


def test_traced_architecture_without_torch(monkeypatch: pytest.MonkeyPatch, model_folders: Mapping[str, Path]) -> None:
    monkeypatch.setattr(build_extra, "available", lambda: False)

    with pytest.raises(MissingExtraError, match=r"exporting a distilbert model .* pip install"):
        make_graph(read_model_folder(model_folders["distilbert"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"num_hidden_layers": 3}, r"lack the tensor encoder\.layer\.2\.", id="layer"),
        pytest.param({"hidden_size": 48}, "has shape .* config.json does not allow", id="shape"),
        pytest.param({"num_attention_heads": 5}, "5 heads do not divide", id="heads"),
        pytest.param({"num_attention_heads": None}, "no `num_attention_heads`", id="missing"),
    ],
)
def test_config_and_weights_disagree(changes: dict[str, object], message: str, copy_folder: CopyFolder) -> None:
    folder = read_model_folder(copy_folder(files={"config.json": changes}))

    with pytest.raises(ModelFolderError, match=message):
        make_graph(folder)


def test_torch_never_fills_missing_weights_at_random(copy_folder: CopyFolder) -> None:
    folder = read_model_folder(copy_folder("distilbert", files={"config.json": {"n_layers": 3}}))

    with pytest.raises(ModelFolderError, match="weights lack the tensor"):
        load_torch_encoder(folder)


def test_architecture_that_transformers_does_not_know(copy_folder: CopyFolder) -> None:
    folder = read_model_folder(copy_folder(files={"config.json": {"model_type": "unheard-of"}}))

    with pytest.raises(ModelFolderError, match="transformers cannot load"):
        make_graph(folder)
