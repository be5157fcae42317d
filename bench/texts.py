"""Texts of known lengths, from words that are one token each in the demo model's vocabulary."""

import random
from collections.abc import Sequence

WORDS = ("river", "house", "tree", "table", "window", "garden", "music", "paper", "light", "stone", "water", "bread")


def text(tokens: int, source: random.Random, words: Sequence[str] = WORDS) -> str:
    """Return a text of that many tokens, special tokens included."""
    return " ".join(source.choices(words, k=tokens - 2))


def bodies(
    model: str,
    count: int,
    texts: int,
    lengths: tuple[int, int],
    encoding_format: str,
    words: Sequence[str] = WORDS,
) -> list[dict[str, object]]:
    """Return request bodies with that many texts each, of lengths drawn evenly from that range.

    `words` are one token each in the model's vocabulary.
    """
    source = random.Random(0)
    return [
        {
            "model": model,
            "input": [text(source.randint(*lengths), source, words) for _ in range(texts)],
            "encoding_format": encoding_format,
        }
        for _ in range(count)
    ]
