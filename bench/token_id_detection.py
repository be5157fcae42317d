"""How often token ids of OpenAI's vocabulary are noticed, and how often the model's own are not believed, by length.

`python -m bench.token_id_detection`, by hand; prints the table of docs/clients.md. Texts: this repository's own pages
and code. OpenAI's vocabulary (cl100k_base, what LangChain takes for text-embedding-3) is the copy inside litellm.
"""

import os
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

from bench.models import DEMO_MODEL
from bench.processes import ROOT
from gateway.token_ids import prepare_decoder, survive

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256)
SAMPLES = 1000
FOLDERS = ("docs", "gateway", "engine_build", "tests")


def main() -> None:
    """Print the table, then the whole lines whose own ids are refused."""
    texts = list(_texts())
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    prepare_decoder(tokenizer)
    vocab_size = tokenizer.get_vocab_size()
    joined = "\n".join(texts)
    foreign = _openai_ids(joined)
    own = tokenizer.encode(joined, add_special_tokens=False).ids

    def refused(ids: list[int]) -> bool:
        return max(ids) >= vocab_size or not survive(tokenizer, ids)

    print("| ids | OpenAI's, refused | own, cut anywhere, refused |", "|---|---|---|", sep="\n")
    source = random.Random(0)
    for length in LENGTHS:
        rates = [
            sum(refused(ids[first : first + length]) for first in source.sample(range(len(ids) - length), SAMPLES))
            for ids in (foreign, own)
        ]
        print(f"| {length} | " + " | ".join(f"{100 * rate / SAMPLES:.1f} %" for rate in rates) + " |")
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    encoded = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    print(f"\nown whole lines refused: {sum(bool(ids) and refused(ids) for ids in encoded)} of {len(lines)}")


def _texts() -> Iterator[str]:
    yield (ROOT / "README.md").read_text()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".md", ".py"):
                yield path.read_text()


def _openai_ids(text: str) -> list[int]:
    package = find_spec("litellm")
    if package is None or package.origin is None:
        raise SystemExit("litellm is not there: pip install -e '.[clients]'")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(package.origin).parent / "litellm_core_utils" / "tokenizers")
    import tiktoken  # noqa: PLC0415 - reads the variable

    return tiktoken.get_encoding("cl100k_base").encode(text, disallowed_special=())


if __name__ == "__main__":
    main()
