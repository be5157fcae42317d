import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer

from gateway.errors import InvalidTokenIds
from gateway.token_ids import TokenIds, check_token_ids, prepare_decoder, survive

VOCAB_SIZE = 30_522
TEXT = (
    "Retrieval-augmented generation doesn't need huge models: do not over-engineer it. Chunkers split documents, "
    "embedders vectorise paragraphs, and approximate nearest-neighbour indexes (HNSW, IVF-PQ) find candidates; e.g. "
    "m3e-base yields 768 dimensions. Tokenizers disagree about hyphenation, unbelievably long compounds, café, 北京."
)


@pytest.fixture(scope="module")
def tokenizer(demo_model_folder: Path) -> FastTokenizer:
    tokenizer = FastTokenizer.from_file(str(demo_model_folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    prepare_decoder(tokenizer)
    return tokenizer


@pytest.fixture(scope="module")
def own(tokenizer: FastTokenizer) -> list[int]:
    return tokenizer.encode(TEXT, add_special_tokens=False).ids


def check(tokenizer: FastTokenizer, ids: list[int], policy: TokenIds = TokenIds.VERIFY) -> None:
    check_token_ids(tokenizer, ids, 3, VOCAB_SIZE, policy)


def test_own_ids_of_whole_texts_pass(tokenizer: FastTokenizer, own: list[int]) -> None:
    check(tokenizer, own)
    for sentence in TEXT.split(". "):
        check(tokenizer, tokenizer.encode(sentence, add_special_tokens=False).ids)
    for text in ("do not", "don't", "[UNK]", "a [MASK] b", "U.S.A.", "x" * 101):
        check(tokenizer, tokenizer.encode(text, add_special_tokens=False).ids)


def test_pieces_of_own_ids_pass_wherever_they_are_cut(tokenizer: FastTokenizer, own: list[int]) -> None:
    for first in range(len(own) - 16):
        assert survive(tokenizer, own[first : first + 16]), own[first : first + 16]


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param([9906, 11, 1917], id="Hello, world"),
        pytest.param([3923, 374, 279, 6864, 315, 9822, 30], id="What is the capital of France?"),
        pytest.param([4438, 656, 358, 7738, 856, 3636], id="How do I reset my password"),
        pytest.param([5109, 2592, 3241, 374, 1949, 311, 1005, 323, 2349, 13], id="Open source software is ..."),
        pytest.param([32, 2875, 1495, 922, 4400, 304, 4040], id="A short text about nothing in particular"),
    ],
)
def test_openais_ids_are_refused_though_all_are_in_range(tokenizer: FastTokenizer, foreign: list[int]) -> None:
    """What the cl100k_base vocabulary makes of these texts."""
    assert max(foreign) < VOCAB_SIZE
    with pytest.raises(InvalidTokenIds, match="check_embedding_ctx_length=False") as caught:
        check(tokenizer, foreign)
    assert caught.value.param == "input[3]"


def test_accept_takes_them_and_reject_takes_none(tokenizer: FastTokenizer, own: list[int]) -> None:
    foreign = random.Random(0).sample(range(1000, VOCAB_SIZE), 20)
    check(tokenizer, foreign, TokenIds.ACCEPT)
    with pytest.raises(InvalidTokenIds, match="not accepted"):
        check(tokenizer, own, TokenIds.REJECT)


@pytest.mark.parametrize("policy", [TokenIds.VERIFY, TokenIds.ACCEPT])
@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 5279552648203111001, 10**25])
def test_out_of_range_is_refused_under_every_policy(tokenizer: FastTokenizer, policy: TokenIds, bad: int) -> None:
    with pytest.raises(InvalidTokenIds, match=r"0 to 30521"):
        check(tokenizer, [1000, bad], policy)


def test_a_huge_sequence_is_judged_by_its_start(tokenizer: FastTokenizer, own: list[int]) -> None:
    check(tokenizer, own * 10_000)
