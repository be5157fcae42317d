"""Turns encodings into padded batches. Called by scheduler; pure."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from gateway.types import Batch, Int32Array


def length_bucket(length: int, buckets: Sequence[int]) -> int:
    """Return the index of the smallest bucket that holds `length` tokens.

    Args:
        length: tokens of one encoding, 1 <= length <= buckets[-1].
        buckets: ascending padded lengths.
    """
    return bisect_left(buckets, length)


def most_rows(padded_length: int, max_batch_size: int, max_batch_tokens: int) -> int:
    """Return how many rows of that length one batch may have: at least 1, at most `max_batch_size`."""
    return max(1, min(max_batch_size, max_batch_tokens // padded_length))


def pad(rows: Sequence[Int32Array], padded_length: int, pad_id: int) -> Batch:
    """Stack token ids into one right-padded batch.

    Args:
        rows: B arrays, int32 [n], 1 <= n <= padded_length.
        padded_length: S.
        pad_id: fills the rest of each row.

    Returns:
        The batch, in new arrays; row i is `rows[i]`.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    real = np.arange(padded_length) < lengths[:, None]
    input_ids = np.full(real.shape, pad_id, np.int32)
    input_ids[real] = np.concatenate(rows)
    return Batch(input_ids, real.astype(np.int32))
