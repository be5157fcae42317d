"""Checks that token ids are of the model's own vocabulary. Called by tokenizer; pure.

A client that tokenizes for OpenAI's models (LangChain does so by default) sends ids of another vocabulary. Many of them
are in range here and would give a plausible, meaningless vector. Ids that a tokenizer made itself survive being decoded
and encoded again; foreign ones mostly do not. A safety net, not a proof: short foreign sequences can pass.
"""

from enum import StrEnum

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders

from gateway.errors import InvalidTokenIds

_EDGE_IDS = 4
"""Most ids of a word that was cut at an edge of a long sequence."""

_JUDGED_IDS = 512
"""A longer sequence is judged by its start, so that the check costs little whatever is sent."""


class TokenIds(StrEnum):
    """What is done with inputs that are token ids."""

    VERIFY = "verify"
    ACCEPT = "accept"
    REJECT = "reject"


def prepare_decoder(tokenizer: FastTokenizer) -> None:
    """Make decoding reversible. Called once, before the tokenizer is shared.

    WordPiece's default clean-up writes "don't" for "do not". Source: huggingface/tokenizers, decoders/wordpiece.rs.
    """
    if isinstance(tokenizer.decoder, decoders.WordPiece):
        tokenizer.decoder = decoders.WordPiece(prefix=tokenizer.decoder.prefix, cleanup=False)


def check_token_ids(tokenizer: FastTokenizer, ids: list[int], index: int, vocab_size: int, policy: TokenIds) -> None:
    """Refuse ids that are not of this vocabulary.

    Args:
        tokenizer: the model's tokenizer, prepared by `prepare_decoder`.
        ids: one input, not empty.
        index: its place in the request, for the message.
        vocab_size: rows of the model's embedding table.
        policy: how much is checked.

    Raises:
        InvalidTokenIds: an id is out of range, the ids do not survive decoding and encoding, or none are accepted.
    """
    param = f"input[{index}]"
    if policy is TokenIds.REJECT:
        raise InvalidTokenIds(f"Token ids are not accepted here: send texts. {_ADVICE}", param=param)
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidTokenIds(
            f"Input {index} has token ids outside this model's vocabulary, 0 to {vocab_size - 1}. {_ADVICE}",
            param=param,
        )
    if policy is TokenIds.VERIFY and not survive(tokenizer, ids[:_JUDGED_IDS]):
        raise InvalidTokenIds(
            f"Input {index} has token ids that this model's tokenizer never makes. {_ADVICE}", param=param
        )


_ADVICE = (
    "Ids must be of this model's own vocabulary. LangChain's OpenAIEmbeddings sends another one's unless"
    " check_embedding_ctx_length=False."
)


def survive(tokenizer: FastTokenizer, ids: list[int]) -> bool:
    """Say whether decoding and encoding gives the ids back, all but a cut word (a quarter at most) at either edge."""
    # As batches of one: only those let go of the interpreter lock, which the event loop needs (tokenizers 0.23).
    text = tokenizer.decode_batch([ids], skip_special_tokens=False)
    again = tokenizer.encode_batch_fast(text, add_special_tokens=False)[0].ids
    if again == ids:
        return True
    edges = range(min(_EDGE_IDS, len(ids) // 4) + 1)
    return any(_contains(again, ids[left : len(ids) - right], _EDGE_IDS * 4) for left in edges for right in edges)


def _contains(whole: list[int], part: list[int], within: int) -> bool:
    """Say whether `part` stands in `whole` near its start. A cut word may decode to more ids than it had."""
    return any(whole[first : first + len(part)] == part for first in range(within + 1))
