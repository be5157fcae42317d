"""A built model gives sentence-transformers' vectors: on a tiny model saved by it, and on the real MiniLM."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from engine_build.build import Place, build
from engine_build.recipe import Options
from gateway.contract import SELF_CHECK_TEXTS


def least_cosine(reference: SentenceTransformer, directory: Path) -> float:
    stored = json.loads((directory / "manifest.json").read_text())["self_check"]["embeddings"]
    expected = reference.encode(list(SELF_CHECK_TEXTS), normalize_embeddings=True, show_progress_bar=False)
    return float(np.sum(np.array(stored) * expected, axis=1).min())


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_folder_saved_by_this_version(pooling: str, model_folders: Mapping[str, Path], tmp_path: Path) -> None:
    encoder = Transformer(str(model_folders["roberta"]), max_seq_length=40)
    model = SentenceTransformer(modules=[encoder, Pooling(32, pooling), Normalize()], device="cpu")
    model.prompts = {"query": "query: ", "document": "passage: "}
    model.save(str(tmp_path / "saved"), create_model_card=False)

    directory = build(tmp_path / "saved", Options(), Place(tmp_path / "repo", tmp_path))

    assert least_cosine(model, directory) > 0.999999
    recipe = json.loads((directory / "manifest.json").read_text())["recipe"]
    assert (recipe["max_sequence_length"], recipe["normalize"]) == (40, True)
    assert recipe["prompts"] == {"query": "query: ", "document": "passage: ", "passage": "passage: "}


def test_minilm(demo_model_folder: Path, tmp_path: Path) -> None:
    directory = build(demo_model_folder, Options(), Place(tmp_path / "repo", tmp_path))

    content = json.loads((directory / "manifest.json").read_text())
    assert content["verified"]["max_difference"] < 5e-5
    assert content["recipe"]["length_buckets"] == [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]
    reference = SentenceTransformer(str(demo_model_folder), device="cpu", local_files_only=True)
    assert least_cosine(reference, directory) > 0.999999
