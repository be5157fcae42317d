"""Texts that collapse or surprise: always 200, the reference library's vector, never taken for empty."""

from pathlib import Path

import numpy as np
import pytest

from gateway.types import Float32Array
from tests.contract.caller import Caller

STRANGE = [
    "😀",
    "🦄",
    "x" * 101,
    "y" * 5000,
    "QUJDRA==" * 600,
    "\u0000",
    "a\u0000b",
    "\u200b",
    "\ufffd",
    "\u200f",
    "e\u0301\u0302\u0303",
    "ＡＢＣ　１２３",
    "繁體中文與漢字",
    "中文mixed拉丁text混合",
    "\u202eright to left\u202c",
    "\U0010ffff",
    "\ufeffbyte order mark",
    "a\r\nb\u2028c",
]


@pytest.fixture(scope="module")
def reference(demo_model_folder: Path) -> Float32Array:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    model = SentenceTransformer(str(demo_model_folder), device="cpu")
    return np.asarray(model.encode(STRANGE, normalize_embeddings=True), np.float32)


def test_equal_to_the_reference_library(caller: Caller, reference: Float32Array) -> None:
    np.testing.assert_allclose(caller.embed(STRANGE, truncate="END"), reference, atol=1e-5)


@pytest.mark.parametrize("text", STRANGE, ids=lambda text: ascii(text[:12]))
def test_alone_as_in_a_list(caller: Caller, text: str) -> None:
    alone, tokens = caller.embed_counting(text, truncate="END")
    assert 2 <= tokens <= 256
    np.testing.assert_allclose(caller.embed(["before", text], truncate="END")[1], alone[0], atol=1e-5)


def test_texts_of_unknown_characters_have_one_vector(caller: Caller) -> None:
    """Right, if surprising: to the model they are the same."""
    emoji = caller.embed(["😀", "🦄", "x" * 101, "y" * 5000])
    np.testing.assert_allclose(emoji, emoji[[0, 0, 0, 0]], atol=1e-5)
    nothing = caller.embed(["\u0000", "\u200b", "\ufffd", "\u200f", " "])
    np.testing.assert_allclose(nothing, nothing[[0, 0, 0, 0, 0]], atol=1e-5)
