"""Embeds the contract's three texts with the exported graph, for the gateway to compare at start. Called by build."""

from typing import Any

import numpy as np
from tokenizers import Tokenizer

from engine_build.onnx_encoder import OnnxEncoder
from engine_build.recipe import Recipe
from engine_build.vectors import sentence_vectors
from gateway.contract import SELF_CHECK_TEXTS

DECIMALS = 7
"""What a float32 below 1 holds; more would be noise."""


def self_check(encoder: OnnxEncoder, tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    """Texts and their vectors, of unit length whatever the recipe says; no prompt is put before them."""
    tokenizer.enable_truncation(recipe.max_sequence_length)
    embeddings = []
    for text in SELF_CHECK_TEXTS:
        input_ids = np.array([tokenizer.encode(text).ids], np.int32)
        mask = np.ones_like(input_ids)
        embedding = sentence_vectors(encoder.run(input_ids, mask), mask, recipe.pooling)[0]
        embeddings.append([round(float(value), DECIMALS) for value in embedding])
    tokenizer.no_truncation()
    return {"texts": list(SELF_CHECK_TEXTS), "embeddings": embeddings}
