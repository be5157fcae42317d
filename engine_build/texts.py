"""Makes the inputs that a plan is verified on: every length that matters, in an order that mixes them. Pure."""

import numpy as np
from tokenizers import Tokenizer

from engine_build.model_folder import ModelFolder

DEFAULT_COUNT = 1000
LENGTHS = (1, 3, 20, 128)
"""Tokens, special ones included; the model's longest sequence joins them."""
SHARES = (0.30, 0.25, 0.25, 0.15, 0.05)
"""Of each length; long texts are few, since the reference takes its time for them."""
SEED = 20_240_602


def sample_texts(tokenizer: Tokenizer, folder: ModelFolder, limit: int, count: int) -> list[list[int]]:
    """Token ids of `count` inputs: random tokens of the vocabulary between the model's own special tokens."""
    generator = np.random.default_rng(SEED)
    lengths = sorted({min(length, limit) for length in (*LENGTHS, limit)})
    shares = np.array(SHARES[-len(lengths) :])
    counts = [max(1, round(share * count)) for share in shares / shares.sum()]
    special = tokenizer.encode("").ids
    usable = _usable_ids(tokenizer, folder)
    texts = [
        _text(length, special, usable, generator)
        for length, times in zip(lengths, counts, strict=True)
        for _ in range(times)
    ]
    order = generator.permutation(len(texts))
    return [texts[index] for index in order]


def _usable_ids(tokenizer: Tokenizer, folder: ModelFolder) -> list[int]:
    """Ordinary tokens: in the vocabulary, not special, and with a row in the table."""
    special = {folder.pad_id, *(added for added in tokenizer.get_added_tokens_decoder())}
    ids = sorted(set(tokenizer.get_vocab(with_added_tokens=False).values()) - special)
    return [one for one in ids if one < folder.vocab_size]


def _text(length: int, special: list[int], usable: list[int], generator: np.random.Generator) -> list[int]:
    room = length - len(special)
    if room < 1 or len(special) < 2:
        return [int(one) for one in generator.choice(usable, length)]
    content = [int(one) for one in generator.choice(usable, room)]
    return [*special[:1], *content, *special[1:]]
