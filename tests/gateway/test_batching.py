import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batching import length_bucket, most_rows, pad

BUCKETS = (16, 32, 64, 128, 256)
rows_of_ids = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=32), min_size=1, max_size=20)


@pytest.mark.parametrize(("length", "bucket"), [(1, 0), (16, 0), (17, 1), (32, 1), (255, 4), (256, 4)])
def test_length_bucket_is_the_smallest_that_holds(length: int, bucket: int) -> None:
    assert length_bucket(length, BUCKETS) == bucket


@given(st.integers(1, 256))
def test_every_length_fits_its_bucket_and_no_smaller_one(length: int) -> None:
    bucket = length_bucket(length, BUCKETS)
    assert length <= BUCKETS[bucket]
    assert bucket == 0 or length > BUCKETS[bucket - 1]


@pytest.mark.parametrize(
    ("padded_length", "rows"),
    [
        pytest.param(16, 64, id="bounded by the batch"),
        pytest.param(512, 8, id="bounded by the tokens"),
        pytest.param(8192, 1, id="never less than one row"),
    ],
)
def test_most_rows(padded_length: int, rows: int) -> None:
    assert most_rows(padded_length, max_batch_size=64, max_batch_tokens=4096) == rows


@given(rows_of_ids, st.integers(0, 8))
def test_pad_keeps_every_id_in_its_row(rows: list[list[int]], extra: int) -> None:
    padded_length = max(map(len, rows)) + extra
    batch = pad([np.array(row, np.int32) for row in rows], padded_length, pad_id=7)
    assert batch.input_ids.shape == batch.attention_mask.shape == (len(rows), padded_length)
    assert batch.input_ids.dtype == batch.attention_mask.dtype == np.int32
    for row, ids, mask in zip(rows, batch.input_ids, batch.attention_mask, strict=True):
        assert ids.tolist() == row + [7] * (padded_length - len(row))
        assert mask.tolist() == [1] * len(row) + [0] * (padded_length - len(row))
