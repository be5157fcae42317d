"""Graphs in every precision, and with pooling inside: types as TensorRT wants them, values near the FP32 graph's."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from engine_build.errors import ExportError
from engine_build.export import export_onnx, make_graph
from engine_build.graph import stored_floats
from engine_build.graph_islands import fp32_layers
from engine_build.model_folder import ModelFolder, read_model_folder
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.overflow import overflowing_layers
from engine_build.precision import FloatType, GraphForm, Precision
from engine_build.vectors import Padding
from engine_build.verify import padded_batch
from engine_build.weights import WORD_EMBEDDINGS
from gateway.contract import Pooling

HALVES = (Precision.FP16, Precision.MIXED)


def run(folder: ModelFolder, path: Path, form: GraphForm) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    export_onnx(folder, path, form)
    ids, mask = padded_batch((5, 40), folder.vocab_size, folder.pad_id, np.random.default_rng(4))
    return OnnxEncoder(path).run(ids, mask), mask


def kinds_of_weights(model: onnx.ModelProto) -> dict[str, int]:
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return {one.name: one.data_type for one in model.graph.initializer if one.data_type in floats}


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("output", [FloatType.FP32, FloatType.FP16])
def test_half_graphs_are_near(precision: Precision, output: FloatType, bert: ModelFolder, tmp_path: Path) -> None:
    plain, mask = run(bert, tmp_path / "plain.onnx", GraphForm())
    half, _ = run(bert, tmp_path / "half.onnx", GraphForm(precision, output))

    assert half.dtype == {"fp32": np.float32, "fp16": np.float16}[output]
    wanted, found = plain[mask == 1], half[mask == 1].astype(np.float32)
    cosines = (wanted * found).sum(-1) / np.linalg.norm(wanted, axis=-1) / np.linalg.norm(found, axis=-1)
    assert cosines.min() > 0.9999
    assert np.abs(wanted - found).max() > 0


@pytest.mark.parametrize("precision", [Precision.FP32, *HALVES])
def test_gelu_by_rows_is_gelu(precision: Precision, bert: ModelFolder, tmp_path: Path) -> None:
    plain, mask = run(bert, tmp_path / "plain.onnx", GraphForm(precision))
    rows, _ = run(bert, tmp_path / "rows.onnx", GraphForm(precision, row_gelu=True))

    assert "ReduceMax" in {node.op_type for node in onnx.load(tmp_path / "rows.onnx").graph.node}
    allowed = 1e-5 if precision is Precision.FP32 else 0.02
    np.testing.assert_allclose(rows[mask == 1], plain[mask == 1], atol=allowed)


@pytest.mark.parametrize(("precision", "kind"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)])
def test_every_weight_has_the_type(precision: str, kind: int, bert: ModelFolder) -> None:
    assert set(kinds_of_weights(make_graph(bert, GraphForm(Precision(precision)))).values()) == {kind}


def test_mixed_keeps_the_stream_in_fp32(bert: ModelFolder, tmp_path: Path) -> None:
    export_onnx(bert, tmp_path / "mixed.onnx", GraphForm(Precision.MIXED))
    kinds = kinds_of_weights(onnx.load(tmp_path / "mixed.onnx"))

    assert kinds["layer.0/feed_forward/wide/weight"] == TensorProto.FLOAT16
    assert kinds["layer.0/feed_forward/norm/weight"] == TensorProto.FLOAT
    assert kinds["embeddings/words"] == TensorProto.FLOAT
    islands = fp32_layers(tmp_path / "mixed.onnx")
    assert {"layer.1/attention/probabilities", "layer.1/attention/norm", "layer.1/feed_forward/sum"} <= set(islands)
    assert not any("query" in name or "wide" in name for name in islands)


def test_half_graph_has_no_island(bert: ModelFolder, tmp_path: Path) -> None:
    export_onnx(bert, tmp_path / "half.onnx", GraphForm(Precision.FP16, FloatType.FP16))

    assert fp32_layers(tmp_path / "half.onnx") == []


def test_layers_beyond_half_are_named(bert: ModelFolder, tmp_path: Path) -> None:
    """The second linear map of a layer grows, and the norm behind it divides that out again."""
    model = make_graph(bert)
    for one in model.graph.initializer:
        if one.name.startswith("layer.0/feed_forward/output/"):
            one.CopyFrom(stored_floats(one.name, numpy_helper.to_array(one) * np.float32(1e5), FloatType.FP32))
    (tmp_path / "grown.onnx").write_bytes(model.SerializeToString())
    texts = [[2, 9, 12, 3], [2, 3]]

    found = overflowing_layers(tmp_path / "grown.onnx", texts, Padding((16, 32), 0))

    assert {name.split(" ")[0] for name in found} == {
        "layer.0/feed_forward/output/product",
        "layer.0/feed_forward/output",
        "layer.0/feed_forward/sum",
    }
    export_onnx(bert, tmp_path / "plain.onnx")
    assert overflowing_layers(tmp_path / "plain.onnx", texts, Padding((16,), 0)) == []


def test_weight_beyond_half(bert: ModelFolder) -> None:
    with pytest.raises(ExportError, match=r"big has values beyond FP16's 65504: use --precision bf16"):
        stored_floats("big", np.array([1.0, 70_000.0], np.float32), FloatType.FP16)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        pytest.param(1.0, 0x3F80, id="exact"),
        pytest.param(1.0 + 2**-8, 0x3F80, id="tie to even, down"),
        pytest.param(1.0 + 3 * 2**-8, 0x3F82, id="tie to even, up"),
        pytest.param(1.0 + 2**-7, 0x3F81, id="next"),
        pytest.param(-3.0e38, 0xFF62, id="large"),
    ],
)
def test_bfloat16_is_rounded_to_nearest(value: float, bits: int) -> None:
    tensor = stored_floats("x", np.array([value], np.float32), FloatType.BF16)

    assert int.from_bytes(tensor.raw_data, "little") == bits


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("pooling", list(Pooling))
def test_pooling_inside(precision: Precision, pooling: Pooling, bert: ModelFolder, tmp_path: Path) -> None:
    form = GraphForm(precision, FloatType.FP32, pooling)
    if precision is Precision.BF16:
        export_onnx(bert, tmp_path / "pooled.onnx", form)  # ONNX Runtime runs none; the types are checked
        return
    hidden, mask = run(bert, tmp_path / "plain.onnx", GraphForm())
    vectors, _ = run(bert, tmp_path / "pooled.onnx", form)

    assert vectors.shape == (5, 32)
    for row, tokens in enumerate(mask.sum(1)):
        real = hidden[row, :tokens]
        pooled = {
            Pooling.MEAN: sum(real) / tokens,
            Pooling.CLS: real[0],
            Pooling.LAST_TOKEN: real[-1],
            Pooling.MAX: np.array([max(column) for column in real.T]),
        }[pooling]
        expected = pooled / np.sqrt(float((pooled**2).sum()))
        np.testing.assert_allclose(vectors[row], expected, atol=1e-5 if precision is Precision.FP32 else 3e-3)


def test_pooled_output_in_half(bert: ModelFolder, tmp_path: Path) -> None:
    vectors, _ = run(bert, tmp_path / "pooled.onnx", GraphForm(Precision.FP16, FloatType.FP16, Pooling.MEAN))

    assert vectors.dtype == np.float16
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=1e-3)


@pytest.mark.parametrize("kind", ["distilbert", "mpnet"])
@pytest.mark.parametrize("pooling", [None, Pooling.MEAN])
def test_traced_graph_in_half(
    kind: str, pooling: Pooling | None, model_folders: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = read_model_folder(model_folders[kind])
    plain, mask = run(folder, tmp_path / "plain.onnx", GraphForm(pooling=pooling))
    half, _ = run(folder, tmp_path / "half.onnx", GraphForm(Precision.FP16, FloatType.FP32, pooling))

    weights = kinds_of_weights(onnx.load(tmp_path / "half.onnx"))
    assert weights[f"encoder.encoder.{WORD_EMBEDDINGS}"] == TensorProto.FLOAT16
    rows = (plain, half) if pooling else (plain[mask == 1], half[mask == 1])
    np.testing.assert_allclose(rows[1], rows[0], atol=0.03)


def test_traced_graph_has_no_mixed_form(model_folders: Mapping[str, Path]) -> None:
    with pytest.raises(ExportError, match="--precision mixed is for BERT"):
        make_graph(read_model_folder(model_folders["distilbert"]), GraphForm(Precision.MIXED))
