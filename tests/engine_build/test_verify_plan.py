"""The comparison on many texts: every row counts, the table shows where, and the message says what to change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine_build.errors import VerificationError
from engine_build.export import export_onnx
from engine_build.model_folder import ModelFolder
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.precision import GraphForm, Precision
from engine_build.recipe import Options, Recipe, Target, plan
from engine_build.report import Report
from engine_build.texts import sample_texts
from engine_build.tokenizer import open_tokenizer
from engine_build.vectors import Padding, Row
from engine_build.verify_plan import Sample, make_sample, verify_vectors
from gateway.contract import Pooling

Output = NDArray[Any]


@pytest.fixture(scope="module")
def tokenizer(model_folders: Any) -> Tokenizer:
    return open_tokenizer(model_folders["bert"] / "tokenizer.json")


@pytest.fixture
def recipe(bert: ModelFolder) -> Recipe:
    return plan(bert, Options(target=Target.TENSORRT))


@pytest.fixture
def sample(bert: ModelFolder, recipe: Recipe, tokenizer: Tokenizer, tmp_path: Path) -> Sample:
    export_onnx(bert, tmp_path / "reference.onnx")
    return make_sample(tmp_path / "reference.onnx", sample_texts(tokenizer, bert, 64, 90), recipe)


def test_texts_have_every_length_and_real_tokens(bert: ModelFolder, tokenizer: Tokenizer) -> None:
    texts = sample_texts(tokenizer, bert, 512, 1000)

    lengths = [len(text) for text in texts]
    assert {length: lengths.count(length) for length in set(lengths)} == {1: 300, 3: 250, 20: 250, 128: 150, 512: 50}
    assert lengths != sorted(lengths)
    assert all(text[0] == 2 and text[-1] == 3 for text in texts if len(text) > 1)
    content = {one for text in texts for one in text[1:-1]}
    assert not content & {0, 1, 2, 3, 4}
    assert len(content) > 100
    assert sample_texts(tokenizer, bert, 512, 1000) == texts


def test_texts_of_a_short_model(bert: ModelFolder, tokenizer: Tokenizer) -> None:
    assert {len(text) for text in sample_texts(tokenizer, bert, 16, 50)} == {1, 3, 16}


def test_the_reference_passes(sample: Sample, recipe: Recipe, tokenizer: Tokenizer) -> None:
    exact = replace(recipe, graph=GraphForm(Precision.FP32))

    report = verify_vectors(OnnxEncoder(sample.reference).run, "graph", sample, exact, tokenizer)

    assert report.good
    assert report.least_cosine > 0.999999
    assert len(report.rows) == 3 * len(sample.texts)
    assert {row.batch for row in report.rows} >= {1, 7, 64}


def spoil(change: Callable[[Output, NDArray[np.int32]], Output]) -> Callable[[Any], Any]:
    return lambda run: lambda ids, mask: change(run(ids, mask).copy(), mask)


def shift_the_last_row(output: Output, mask: NDArray[np.int32]) -> Output:
    if len(output) > 1:
        output[-1] = np.roll(output[-1], 1, -1)
    return output


def nan_in_padding(output: Output, mask: NDArray[np.int32]) -> Output:
    output[mask == 0] = np.nan
    return output


def infinite_row(output: Output, mask: NDArray[np.int32]) -> Output:
    output[0, 0, 0] = np.inf
    return output


def noise(output: Output, mask: NDArray[np.int32]) -> Output:
    return np.asarray(output + np.random.default_rng(0).normal(0, 0.02, output.shape).astype(np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(shift_the_last_row, "0 rows not finite", id="only the first rows are right"),
        pytest.param(nan_in_padding, "least cosine nan, [1-9]", id="NaN in padding"),
        pytest.param(infinite_row, "least cosine nan, [1-9]", id="infinity"),
        pytest.param(lambda output, mask: output[:, ::-1], "0 rows not finite", id="order of tokens"),
        pytest.param(lambda output, mask: output[:, :, :-1], "gives .*; 32 values a vector are due", id="shape"),
    ],
)
def test_faults_are_found(change: Any, message: str, sample: Sample, recipe: Recipe, tokenizer: Tokenizer) -> None:
    cls = replace(recipe, pooling=Pooling.CLS) if "order" in message else recipe
    run = spoil(change)(OnnxEncoder(sample.reference).run)

    if change.__name__ == "<lambda>" and "finite" in message:
        # Mean pooling of whole rows does not see the order; padded rows do.
        assert cls.pooling is Pooling.MEAN
    with pytest.raises(VerificationError, match=message):
        verify_vectors(run, "graph", sample, recipe, tokenizer)


@pytest.mark.parametrize(
    ("precision", "advice"),
    [
        ("fp32", "FP32 leaves nothing to change"),
        ("fp16", "use --precision mixed"),
        ("mixed", "use --precision fp32"),
        ("bf16", "use --precision mixed or fp32"),
    ],
)
def test_advice(precision: str, advice: str, sample: Sample, recipe: Recipe, tokenizer: Tokenizer) -> None:
    rough = replace(recipe, graph=GraphForm(Precision(precision)))
    run = spoil(lambda output, mask: output + np.float32(0.3) * np.random.default_rng(0).normal(size=output.shape))

    with pytest.raises(VerificationError, match=advice):
        verify_vectors(run(OnnxEncoder(sample.reference).run), "graph", sample, rough, tokenizer)


def test_advice_names_the_layers_that_overflow(
    sample: Sample, recipe: Recipe, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_build.verify_plan.overflowing_layers", lambda *_: ["layer.9/sum (71000)"])
    run = spoil(infinite_row)(OnnxEncoder(sample.reference).run)

    with pytest.raises(VerificationError, match=r"65504 are layer.9/sum \(71000\): use --precision mixed, bf16"):
        verify_vectors(run, "graph", sample, recipe, tokenizer)


def test_report_shows_cells_and_the_worst() -> None:
    nan = float("nan")
    rows = [Row(0, 1, 1, 0, 0.99999), Row(1, 20, 7, 3, nan), Row(2, 20, 7, 4, 0.5), Row(3, 20, 7, 5, 0.9999)]
    report = Report("plan", tuple(rows), 0.999)

    table = report.table([[1], [2], [3], [4]], lambda ids: f"text of {ids[0]}")

    assert not report.good
    assert "1 rows are not finite" in table
    assert table.index("text of 2") < table.index("text of 3") < table.index("text of 4")
    assert "      7      20      3           nan" in table
    assert report.as_json()["by_shape"] == {"1x1": 0.99999, "7x20": None}
    assert report.as_json()["least_cosine"] is None


def test_padding_goes_to_the_next_bucket() -> None:
    ids, mask = Padding((4, 8), 9).batch([[1, 2, 3, 4, 5], [1]])

    assert ids.tolist() == [[1, 2, 3, 4, 5, 9, 9, 9], [1, 9, 9, 9, 9, 9, 9, 9]]
    assert mask.sum(1).tolist() == [5, 1]
    assert Padding((4,), 0).batch([[1] * 6])[0].shape == (1, 6)
