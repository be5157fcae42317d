"""Texts of known lengths, from words that are one token each in the demo model's vocabulary."""

import random

WORDS = ("river", "house", "tree", "table", "window", "garden", "music", "paper", "light", "stone", "water", "bread")


def text(tokens: int, source: random.Random) -> str:
    """Return a text of that many tokens, special tokens included."""
    return " ".join(source.choices(WORDS, k=tokens - 2))


def bodies(
    model: str, count: int, texts: int, lengths: tuple[int, int], encoding_format: str
) -> list[dict[str, object]]:
    """Return request bodies with that many texts each, of lengths drawn evenly from that range."""
    source = random.Random(0)
    return [
        {
            "model": model,
            "input": [text(source.randint(*lengths), source) for _ in range(texts)],
            "encoding_format": encoding_format,
        }
        for _ in range(count)
    ]
