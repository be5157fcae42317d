"""verify finds the faults it is there for: each graph here was broken on purpose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build import build_extra
from engine_build import verify as verify_module
from engine_build.errors import MissingExtraError, VerificationError
from engine_build.export import export_onnx
from engine_build.model_folder import ModelFolder, read_model_folder
from engine_build.reference import ReferenceKind
from engine_build.tokenizer import open_tokenizer
from engine_build.verify import padded_batch, verify
from tests.engine_build.tiny import CopyFolder


def run(folder: ModelFolder, path: Path, kind: ReferenceKind = ReferenceKind.NUMPY) -> None:
    verify(folder, path, open_tokenizer(folder.encoder_path / "tokenizer.json"), kind)


def swap_inputs(model: onnx.ModelProto) -> None:
    other = {"input_ids": "attention_mask", "attention_mask": "input_ids"}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = other.get(name, name)


def change_constant(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[onnx.ModelProto], None]:
    def mutate(model: onnx.ModelProto) -> None:
        (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))

    return mutate


def swap_last_positions(table: NDArray[Any]) -> NDArray[Any]:
    table[[-1, -2]] = table[[-2, -1]]
    return table


def change_one_weight(kernel: NDArray[Any]) -> NDArray[Any]:
    kernel[0, 0] += 0.01
    return kernel


def declare_int64(model: onnx.ModelProto) -> None:
    for tensor in model.graph.input:
        tensor.type.tensor_type.elem_type = TensorProto.INT64


def drop_last_token(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = "whole"
    for name, value in (("start", 0), ("end", -1), ("axis", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
    model.graph.node.append(helper.make_node("Slice", ["whole", "start", "end", "axis"], ["last_hidden_state"]))


@pytest.fixture
def graph(bert: ModelFolder, tmp_path: Path) -> Path:
    export_onnx(bert, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        pytest.param(swap_inputs, "graph fails|differs from the reference", id="swapped inputs"),
        pytest.param(change_constant("scalars/-10000.0", np.zeros_like), "row 1 .* differs", id="mask leaks"),
        pytest.param(change_constant("scalars/-10000.0", np.negative), "row 1 .* differs", id="mask inverted"),
        pytest.param(
            change_constant("ints/0,0,4,8", lambda s: np.array([5, 0, 4, 8])), r"fails on a batch.*2, 16", id="batch"
        ),
        pytest.param(
            change_constant("ints/0,0,4,8", lambda s: np.array([0, 48, 4, 8])), r"fails on a batch.*2, 16", id="length"
        ),
        pytest.param(
            change_constant("embeddings/positions", lambda t: np.roll(t, 1, 0)), "differs", id="positions shifted"
        ),
        pytest.param(
            change_constant("embeddings/positions", swap_last_positions), r"batch \[1, 64\]", id="last position"
        ),
        pytest.param(change_constant("layer.1/attention/key/weight", change_one_weight), "differs", id="one weight"),
        pytest.param(
            change_constant("embeddings/words", lambda w: np.full_like(w, np.nan)), "not finite", id="not finite"
        ),
        pytest.param(declare_int64, "not INT32", id="int64"),
        pytest.param(drop_last_token, "gives shape", id="shape"),
    ],
)
def test_broken_graph(mutate: Callable[[onnx.ModelProto], None], message: str, graph: Path, bert: ModelFolder) -> None:
    run(bert, graph)
    model = onnx.load(graph)
    mutate(model)
    onnx.save(model, graph)

    with pytest.raises(VerificationError, match=message):
        run(bert, graph)


def test_graph_of_another_model(graph: Path, copy_folder: CopyFolder) -> None:
    with pytest.raises(VerificationError, match="reference"):
        run(read_model_folder(copy_folder("roberta")), graph)


@pytest.mark.parametrize("content", [None, b"half a file"])
def test_file_that_cannot_be_loaded(content: bytes | None, bert: ModelFolder, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)

    with pytest.raises(VerificationError, match="cannot load"):
        run(bert, tmp_path / "model.onnx")


def test_tokenizer_that_differs_from_transformers(graph: Path, bert: ModelFolder) -> None:
    tokenizer = open_tokenizer(bert.encoder_path / "tokenizer.json")
    tokenizer.normalizer = None

    with pytest.raises(VerificationError, match="the tokenizer gives"):
        verify(bert, graph, tokenizer)


def test_without_torch_numpy_is_the_reference(graph: Path, bert: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_extra, "available", lambda: False)

    result = verify(bert, graph, open_tokenizer(bert.encoder_path / "tokenizer.json"))

    assert result.reference is ReferenceKind.NUMPY
    assert not result.as_json()["token_ids_compared"]
    with pytest.raises(MissingExtraError, match="the torch reference needs"):
        run(bert, graph, ReferenceKind.TORCH)


def test_numpy_reference_of_another_architecture(graph: Path, copy_folder: CopyFolder) -> None:
    with pytest.raises(MissingExtraError, match="does not know distilbert"):
        run(read_model_folder(copy_folder("distilbert")), graph)


def test_batches_hold_every_length_and_no_pad_id() -> None:
    ids, mask = padded_batch((5, 48), 10, 3, np.random.default_rng(0))

    assert mask.sum(axis=1).tolist() == [48, 36, 24, 12, 1]
    assert (np.diff(mask, axis=1) <= 0).all()
    assert set(ids[mask == 1]) == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    assert set(ids[mask == 0]) == {3}


def test_tolerance_is_for_every_row(graph: Path, bert: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "TOLERANCE", 0.0)

    with pytest.raises(VerificationError, match="row 0 of 48 tokens"):
        run(bert, graph)
