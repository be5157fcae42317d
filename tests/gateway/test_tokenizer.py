import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors

from gateway.errors import ContextLengthExceeded, InvalidTokenIds, StartupError
from gateway.token_ids import TokenIds
from gateway.tokenizer import Tokenizer
from gateway.types import Encoding, Truncate

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "query", ":"]
CLS, SEP, A, B, C, D = 2, 3, 4, 5, 6, 7


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A WordPiece tokenizer that asks for truncation and padding, as many published ones do."""
    tokenizer = FastTokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def open_tokenizer(path: Path, executor: Executor, **changes: Any) -> Tokenizer:
    options = {"max_sequence_length": 8, "vocab_size": len(WORDS), "max_input_chars": 100, **changes}
    options = {"token_ids": TokenIds.VERIFY, **options}
    return Tokenizer(path, executor=executor, **options)


@pytest.fixture
def tokenizer(tokenizer_file: Path, executor: Executor) -> Tokenizer:
    return open_tokenizer(tokenizer_file, executor)


def ids(encodings: list[Encoding]) -> list[list[int]]:
    assert all(encoding.input_ids.dtype == np.int32 for encoding in encodings)
    return [encoding.input_ids.tolist() for encoding in encodings]


async def test_the_files_own_truncation_and_padding_are_off(tokenizer: Tokenizer) -> None:
    encodings = await tokenizer.encode(["a b c d", "a"], truncate=Truncate.NONE)
    assert ids(encodings) == [[CLS, A, B, C, D, SEP], [CLS, A, SEP]]


async def test_ids_get_special_tokens_once_and_the_prompt(tokenizer: Tokenizer) -> None:
    assert ids(await tokenizer.encode([[A, B], [C]], truncate=Truncate.NONE)) == [[CLS, A, B, SEP], [CLS, C, SEP]]
    text = await tokenizer.encode(["a"], truncate=Truncate.NONE, prompt="query: ")
    assert ids(text) == ids(await tokenizer.encode([[A]], truncate=Truncate.NONE, prompt="query: "))


@pytest.mark.parametrize("inputs", [["a b c d a b c"], [[A, B, C, D, A, B, C]]], ids=["text", "ids"])
@pytest.mark.parametrize(
    ("truncate", "expected"),
    [(Truncate.END, [CLS, A, B, C, D, A, B, SEP]), (Truncate.START, [CLS, B, C, D, A, B, C, SEP])],
)
async def test_cut_to_the_limit_with_special_tokens_kept(
    tokenizer: Tokenizer, inputs: list[str], truncate: Truncate, expected: list[int]
) -> None:
    encodings = await tokenizer.encode(["a", *inputs] if isinstance(inputs[0], str) else inputs, truncate=truncate)
    assert ids(encodings)[-1] == expected
    assert encodings[-1].truncated


async def test_a_text_at_the_limit_is_untouched(tokenizer: Tokenizer) -> None:
    for truncate in Truncate:
        (encoding,) = await tokenizer.encode(["a b c d a b"], truncate=truncate)
        assert len(encoding.input_ids) == 8
        assert not encoding.truncated


async def test_too_long_names_the_index_and_both_counts(tokenizer: Tokenizer) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"Input 1 has 9 tokens.* at most 8") as caught:
        await tokenizer.encode(["a", "a b c d a b c"], truncate=Truncate.NONE)
    assert caught.value.param == "input[1]"


async def test_more_characters_than_are_tokenized(tokenizer: Tokenizer) -> None:
    text = "a " * 200 + "b"
    with pytest.raises(ContextLengthExceeded, match="Input 1 has 401 characters; at most 100"):
        await tokenizer.encode(["a", text], truncate=Truncate.NONE)
    end, start = [(await tokenizer.encode([text], truncate=t))[0] for t in (Truncate.END, Truncate.START)]
    assert end.truncated
    assert start.truncated
    assert start.input_ids[-2] == B


async def test_the_character_cap_alone_counts_as_truncated(tokenizer: Tokenizer) -> None:
    # One long word is one unknown token, cut or not; something of the text is lost all the same.
    (encoding,) = await tokenizer.encode(["x" * 101], truncate=Truncate.END)
    assert encoding.input_ids.tolist() == [CLS, 1, SEP]
    assert encoding.truncated


@pytest.mark.parametrize("bad", [-1, len(WORDS), 2**70])
async def test_ids_outside_the_vocabulary(tokenizer: Tokenizer, bad: int) -> None:
    with pytest.raises(InvalidTokenIds) as caught:
        await tokenizer.encode([[A], [B, bad]], truncate=Truncate.NONE)
    assert caught.value.param == "input[1]"


@pytest.mark.parametrize("text", [" ", "\n\t", "\u0000", "\u200b", "\ufffd", "\u200f"])
async def test_texts_of_nothing_visible_are_special_tokens_only(tokenizer: Tokenizer, text: str) -> None:
    (encoding,) = await tokenizer.encode([text], truncate=Truncate.NONE)
    assert encoding.input_ids[0] == CLS
    assert encoding.input_ids[-1] == SEP


async def test_many_long_texts_keep_their_order(tokenizer_file: Path, executor: Executor) -> None:
    tokenizer = open_tokenizer(tokenizer_file, executor, max_input_chars=100_000)
    texts = ["abcd"[i % 4] + " " * (i * 997 % 40_000) for i in range(40)]
    encodings = await tokenizer.encode(texts, truncate=Truncate.NONE)
    assert ids(encodings) == [[CLS, (A, B, C, D)[i % 4], SEP] for i in range(40)]


async def test_parallel_calls_do_not_see_each_other(tokenizer: Tokenizer) -> None:
    long, short = "a b c d a b c d", "a"

    async def one(i: int) -> None:
        inputs, truncate = ([long, short], Truncate.END) if i % 2 else ([short], Truncate.NONE)
        expected = [[CLS, A, B, C, D, A, B, SEP], [CLS, A, SEP]] if i % 2 else [[CLS, A, SEP]]
        assert ids(await tokenizer.encode(inputs, truncate=truncate)) == expected

    await asyncio.gather(*(one(i) for i in range(400)))


async def test_the_event_loop_goes_on_meanwhile(tokenizer_file: Path, executor: Executor) -> None:
    tokenizer = open_tokenizer(tokenizer_file, executor, max_input_chars=10_000_000)
    work = asyncio.create_task(tokenizer.encode(["语" * 300_000], truncate=Truncate.END))
    turns, started = 0, time.perf_counter()
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    # On the loop it would be one turn, whatever the machine's speed.
    assert turns > 10, f"{turns} turns in {time.perf_counter() - started:.2f} s"


def test_a_missing_file_stops_the_start(tmp_path: Path, executor: Executor) -> None:
    with pytest.raises(StartupError, match=r"no tokenizer at .*tokenizer\.json"):
        open_tokenizer(tmp_path / "tokenizer.json", executor)


def test_an_unreadable_file_stops_the_start(tmp_path: Path, executor: Executor) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(StartupError, match="is not a tokenizer"):
        open_tokenizer(path, executor)


def test_a_vocabulary_larger_than_the_models_stops_the_start(tokenizer_file: Path, executor: Executor) -> None:
    with pytest.raises(StartupError, match="has 10 tokens but the model only 9"):
        open_tokenizer(tokenizer_file, executor, vocab_size=9)


def test_a_list_is_encoded_by_the_thread_that_asked(tokenizer_file: Path) -> None:
    """Not by a pool of the library's own, where short lists would wait for everybody's long ones."""
    code = f"""
import asyncio, os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from gateway.token_ids import TokenIds
from gateway.tokenizer import Tokenizer
from gateway.types import Truncate
tokenizer = Tokenizer(Path({str(tokenizer_file)!r}), max_sequence_length=256, vocab_size=30_522, max_input_chars=10_000,
    token_ids=TokenIds.VERIFY, executor=ThreadPoolExecutor(1))
before = len(os.listdir("/proc/self/task"))
asyncio.run(tokenizer.encode(["tree", "river"] * 20, truncate=Truncate.NONE))
print(len(os.listdir("/proc/self/task")) - before)
"""
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"


async def test_short_requests_do_not_wait_behind_long_ones(tokenizer_file: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        tokenizer = Tokenizer(
            tokenizer_file,
            max_sequence_length=16,
            vocab_size=len(WORDS),
            max_input_chars=10_000_000,
            token_ids=TokenIds.VERIFY,
            executor=executor,
            long_chunks=1,
        )
        done: list[str] = []

        async def encode(name: str, texts: list[str]) -> None:
            await tokenizer.encode(texts, truncate=Truncate.END)
            done.append(name)

        long_ones = [asyncio.create_task(encode("long", ["a b c d " * 10_000] * 4)) for _ in range(4)]
        await asyncio.sleep(0)
        await encode("short", ["a b c d " * 200])
        assert done == ["short"]
        await asyncio.gather(*long_ones)
