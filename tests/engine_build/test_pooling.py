"""Pooling of the self-check vectors against sentence-transformers' own module."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling as ReferencePooling

from engine_build.pipeline import POOLING_MODES
from engine_build.pooling import sentence_embedding


@pytest.mark.parametrize(("word", "pooling"), POOLING_MODES.items())
def test_pooling_equals_sentence_transformers(word: str, pooling: object) -> None:
    hidden = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    features = {"token_embeddings": torch.from_numpy(hidden)[None], "attention_mask": torch.ones(1, 5)}
    reference = ReferencePooling(8, word)(features)["sentence_embedding"]

    ours = sentence_embedding(hidden, POOLING_MODES[word])

    assert pooling is POOLING_MODES[word]
    np.testing.assert_allclose(ours, torch.nn.functional.normalize(reference)[0].numpy(), atol=1e-6)
