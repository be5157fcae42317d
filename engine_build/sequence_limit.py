"""Finds a model's longest sequence and the padded lengths to serve it with. Called by model_folder and recipe; pure.

Source of the offset: fairseq numbers positions from padding_idx + 1, so 514 rows hold 512 tokens.
"""

from dataclasses import dataclass
from typing import Any, TypeGuard

from engine_build.errors import ModelFolderError, OptionError

OFFSET_MODEL_TYPES = frozenset(
    {
        "camembert",
        "data2vec-text",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Architectures whose first position is pad_token_id + 1."""

DEFAULT_OFFSET_PAD_ID = 1
"""transformers' pad_token_id of those architectures, where config.json does not repeat it."""

SENTINEL_LENGTH = 1_000_000
"""A tokenizer without a limit reports about 1e30; anything from here on means that there is none."""

SHORTEST_BUCKET = 16


@dataclass(frozen=True, slots=True)
class SequenceLimit:
    """The longest sequence, special tokens included.

    Attributes:
        tokens: what to serve; at most `positions`.
        positions: what the position table holds; None where there is none.
        origin: the file and key that set `tokens`.
    """

    tokens: int
    positions: int | None
    origin: str


def first_position(config: dict[str, Any]) -> int:
    """Row of the position table that the first token uses."""
    if config["model_type"] not in OFFSET_MODEL_TYPES:
        return 0
    pad_id = config.get("pad_token_id")
    return (DEFAULT_OFFSET_PAD_ID if pad_id is None else int(pad_id)) + 1


def read_sequence_limit(
    config: dict[str, Any], encoder_config: dict[str, Any], tokenizer_config: dict[str, Any]
) -> SequenceLimit:
    """Smallest of what the three files say.

    Raises:
        ModelFolderError: none of them names a limit, or it is below one token.
    """
    positions = _positions(config)
    candidates = {
        "sentence_bert_config.json: max_seq_length": encoder_config.get("max_seq_length"),
        "tokenizer_config.json: model_max_length": tokenizer_config.get("model_max_length"),
        "config.json: max_position_embeddings": positions,
    }
    limits = {origin: int(tokens) for origin, tokens in candidates.items() if _is_limit(tokens)}
    if not limits:
        raise ModelFolderError(f"no file names the longest sequence; looked for {', '.join(candidates)}")
    origin = min(limits, key=lambda name: limits[name])
    if limits[origin] < 1:
        raise ModelFolderError(f"{origin} leaves no room for a token: {limits[origin]}")
    return SequenceLimit(limits[origin], positions, origin)


def length_buckets(limit_tokens: int) -> tuple[int, ...]:
    """Return padded lengths in steps of a fifth to a quarter, at least 16 tokens, the last being the limit itself.

    Against powers of two this halves the padding of mixed texts; that each bucket fills more slowly costs nothing, as
    the gateway lets shorter rows join a batch wherever that is worth it.
    """
    buckets = [SHORTEST_BUCKET]
    while buckets[-1] < limit_tokens:
        power_of_two = 1 << (buckets[-1].bit_length() - 1)
        buckets.append(buckets[-1] + max(SHORTEST_BUCKET, power_of_two // 4))
    return (*buckets[:-1], limit_tokens)


def check_length_buckets(buckets: tuple[int, ...], limit_tokens: int) -> tuple[int, ...]:
    """Return buckets given by hand.

    Raises:
        OptionError: they do not ascend from 1, or do not end at the limit.
    """
    if list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
        raise OptionError(f"length buckets must ascend: {','.join(map(str, buckets))}")
    if buckets[-1] != limit_tokens:
        raise OptionError(f"the last length bucket must be the longest sequence, {limit_tokens}, not {buckets[-1]}")
    return buckets


def _positions(config: dict[str, Any]) -> int | None:
    rows = config.get("max_position_embeddings")
    return None if not isinstance(rows, int) or rows < 0 else rows - first_position(config)


def _is_limit(tokens: object) -> TypeGuard[int | float]:
    return isinstance(tokens, int | float) and not isinstance(tokens, bool) and tokens < SENTINEL_LENGTH
