"""What the gateway and the engine builder agree on: tensor names, config.pbtxt parameters, files of a model directory.

Standard library only: this is the one file of the gateway that engine_build imports.

A model directory::

    triton_repo/<model>/
        config.pbtxt        Triton's configuration, with the PARAMETER_* keys below
        tokenizer.json      the fast tokenizer, read by the gateway
        manifest.json       versions, hashes and the self-check vectors, read by the gateway
        1/                  the engine: model.plan, or model.onnx with the model.py that runs it
"""

from enum import StrEnum

FORMAT_VERSION = 1
"""Version of this contract; written into both config.pbtxt and manifest.json."""

INPUT_IDS = "input_ids"
"""Token ids, INT32 [B,S], right-padded with the model's pad id."""
ATTENTION_MASK = "attention_mask"
"""1 for real tokens and 0 for padding, INT32 [B,S]; each row has at least one 1."""
TOKEN_TYPE_IDS = "token_type_ids"
"""Segment ids, INT32 [B,S], all zero; sent only to models that declare it."""

LAST_HIDDEN_STATE = "last_hidden_state"
"""Token embeddings, FP32 or FP16 [B,S,H]: the gateway pools them."""
SENTENCE_EMBEDDING = "sentence_embedding"
"""Sentence embeddings, FP32 or FP16 [B,H]: pooled inside the engine."""

CONFIG_FILE = "config.pbtxt"
MANIFEST_FILE = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"

PARAMETER_FORMAT = "embedding.format"
"""FORMAT_VERSION, decimal."""
PARAMETER_POOLING = "embedding.pooling"
"""A Pooling value."""
PARAMETER_NORMALIZE = "embedding.normalize"
"""`true` or `false`: whether the model's own pipeline ends in L2 normalisation."""
PARAMETER_HIDDEN_SIZE = "embedding.hidden_size"
"""H, decimal."""
PARAMETER_MAX_SEQUENCE_LENGTH = "embedding.max_sequence_length"
"""Most tokens of one input, special tokens included, decimal."""
PARAMETER_LENGTH_BUCKETS = "embedding.length_buckets"
"""Ascending padded lengths, decimal, joined by commas; the last is the largest length ever sent."""
PARAMETER_PAD_ID = "embedding.pad_id"
"""Token id that fills padding, decimal."""
PARAMETER_VOCAB_SIZE = "embedding.vocab_size"
"""Rows of the word embedding table; every id is below it. Decimal."""
PARAMETER_PROMPTS = "embedding.prompts"
"""JSON object: input type (`query`, `passage`) to the text put before each input."""

SELF_CHECK_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "如何更换花呗绑定银行卡?",
    "embeddings: naïve café, Ünïcödé, 42 %",
)
"""Texts whose vectors stand in manifest.json; the gateway embeds them at start and compares."""

SELF_CHECK_MIN_COSINE = 0.999
"""Least cosine between the engine's and the manifest's vectors. FP16 plans reach 0.9999; another pooling, tokenizer
or model falls far below."""


class Pooling(StrEnum):
    """How token embeddings become one sentence embedding."""

    MEAN = "mean"
    CLS = "cls"
    LAST_TOKEN = "last_token"
    MAX = "max"
