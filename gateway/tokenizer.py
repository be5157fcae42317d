"""Turns texts and token ids into encodings, in worker threads unless they are short. Called by embedder.

One low-level `tokenizers` object serves all threads and is never reconfigured after start: its truncation and padding
settings are shared state, and a call that changes them changes other threads' calls. It only ever makes content ids;
special tokens, cutting and padding are ours.
"""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from gateway.errors import ContextLengthExceeded, StartupError
from gateway.token_ids import TokenIds, check_token_ids, prepare_decoder
from gateway.types import Encoding, Inputs, Truncate, are_texts

_CHUNK_LENGTH = 65_536
"""Characters (or ids) that one thread takes at a time, so that short requests get their turn in between."""

_INLINE_LENGTH = 512
"""Up to this many characters (or ids) are encoded on the event loop: half a millisecond at most, where the way through
a thread takes 0.15 ms more than the work. Source: measured, 42 characters, 0.05 against 0.20 ms of CPU time."""

_SHORT_LENGTH = 16_384
"""Up to this many characters (or ids), 50 ms of work at most, a request does not wait behind longer ones."""


class Tokenizer:
    """Encodes the inputs of one model.

    Args:
        path: the model's tokenizer.json.
        max_sequence_length: most tokens of one encoding, special tokens included.
        vocab_size: rows of the model's embedding table; every id must be below it.
        max_input_chars: longest text that is tokenized at all.
        token_ids: how inputs that are token ids are checked.
        executor: runs the work; its size bounds how much of the machine tokenizing takes.
        long_chunks: how many of its threads long requests may take; one more thread leaves room for short ones.

    Raises:
        StartupError: the file is missing or unreadable, or has more ids than the model.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_sequence_length: int,
        vocab_size: int,
        max_input_chars: int,
        token_ids: TokenIds,
        executor: Executor,
        long_chunks: int = 1,
    ) -> None:
        self._tokenizer = _load(path)
        ids = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if ids > vocab_size:
            raise StartupError(f"{path} has {ids} tokens but the model only {vocab_size}: they do not belong together")
        self._prefix, self._suffix = _special_tokens(self._tokenizer)
        self._max_sequence_length = max_sequence_length
        self._vocab_size = vocab_size
        self._max_input_chars = max_input_chars
        self._token_ids = token_ids
        self._executor = executor
        self._long_chunks = asyncio.Semaphore(long_chunks)

    async def encode(self, inputs: Inputs, *, truncate: Truncate, prompt: str = "") -> list[Encoding]:
        """Encode each input, in order.

        Args:
            inputs: texts, or ids of this model's vocabulary without special tokens; none of them empty.
            truncate: what happens to an input that is too long.
            prompt: text put before each input.

        Raises:
            ContextLengthExceeded: an input is too long and `truncate` is NONE.
            InvalidTokenIds: an id is not of this vocabulary.
        """
        length = sum(map(len, inputs))
        if length <= _INLINE_LENGTH:
            return self._encode_chunk(inputs, 0, truncate, prompt)
        if length <= _SHORT_LENGTH:
            return await self._encode_in_thread(inputs, 0, truncate, prompt)
        encodings: list[Encoding] = []
        for first, last in _chunks(inputs):
            async with self._long_chunks:
                encodings += await self._encode_in_thread(inputs[first:last], first, truncate, prompt)
        return encodings

    async def _encode_in_thread(self, inputs: Inputs, first: int, truncate: Truncate, prompt: str) -> list[Encoding]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._encode_chunk, inputs, first, truncate, prompt)

    def _encode_chunk(self, inputs: Inputs, first: int, truncate: Truncate, prompt: str) -> list[Encoding]:
        if are_texts(inputs):
            contents, capped = self._encode_texts(inputs, first, truncate, prompt)
        else:
            contents, capped = self._encode_ids(inputs, first, prompt)
        return [
            self._assemble(content, index, truncate, cut)
            for index, (content, cut) in enumerate(zip(contents, capped, strict=True), first)
        ]

    def _encode_texts(
        self, texts: list[str], first: int, truncate: Truncate, prompt: str
    ) -> tuple[list[list[int]], list[bool]]:
        limit = self._max_input_chars
        capped = [len(text) > limit for text in texts]
        if truncate is Truncate.NONE and any(capped):
            index = capped.index(True)
            raise ContextLengthExceeded(
                f"Input {first + index} has {len(texts[index])} characters; at most {limit} are taken. Shorten it, or"
                " set `truncate` to END or START.",
                param=f"input[{first + index}]",
            )
        kept = (text[-limit:] if truncate is Truncate.START else text[:limit] for text in texts)
        encoded = self._tokenizer.encode_batch_fast([prompt + text for text in kept], add_special_tokens=False)
        return [encoding.ids for encoding in encoded], capped

    def _encode_ids(self, inputs: list[list[int]], first: int, prompt: str) -> tuple[list[list[int]], list[bool]]:
        for index, ids in enumerate(inputs, first):
            check_token_ids(self._tokenizer, ids, index, self._vocab_size, self._token_ids)
        prompt_ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return [prompt_ids + ids for ids in inputs], [False] * len(inputs)

    def _assemble(self, content: list[int], index: int, truncate: Truncate, truncated: bool) -> Encoding:
        most = self._max_sequence_length - len(self._prefix) - len(self._suffix)
        if len(content) > most:
            if truncate is Truncate.NONE:
                special = len(self._prefix) + len(self._suffix)
                raise ContextLengthExceeded(
                    f"Input {index} has {len(content) + special} tokens; this model takes at most"
                    f" {self._max_sequence_length}. Shorten it, or set `truncate` to END or START.",
                    param=f"input[{index}]",
                )
            content = content[-most:] if truncate is Truncate.START else content[:most]
            truncated = True
        return Encoding(np.array(self._prefix + content + self._suffix, np.int32), truncated)


def _load(path: Path) -> FastTokenizer:
    # Else `tokenizers` spreads each list over a pool of its own, one for the whole process: a list of two short texts
    # waits there for everybody's long ones, seconds, and tokenizing takes every core. Read at each call.
    os.putenv("TOKENIZERS_PARALLELISM", "false")
    if not path.is_file():
        raise StartupError(f"no tokenizer at {path}: build the model directory with engine_build")
    try:
        tokenizer = FastTokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise StartupError(f"{path} is not a tokenizer that this version of `tokenizers` reads: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    prepare_decoder(tokenizer)
    return tokenizer


def _special_tokens(tokenizer: FastTokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and after one text."""
    content = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    first = next(i for i in range(len(whole)) if whole[i : i + len(content)] == content)
    return whole[:first], whole[first + len(content) :]


def _chunks(inputs: Inputs) -> Iterator[tuple[int, int]]:
    """Cut the inputs into runs [first, last) of about _CHUNK_LENGTH characters or ids, at least one input each."""
    first = length = 0
    for index, one in enumerate(inputs):
        length += len(one)
        if length >= _CHUNK_LENGTH:
            yield first, index + 1
            first, length = index + 1, 0
    if first < len(inputs):
        yield first, len(inputs)
