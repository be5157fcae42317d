import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gateway.contract import Pooling
from gateway.pooling import normalize, pool
from gateway.types import Float32Array, Int32Array

BAD_VALUES = [math.nan, math.inf, -math.inf, 3e38]


def reference(hidden: Float32Array, lengths: list[int], pooling: Pooling) -> NDArray[np.float64]:
    rows = []
    for row, length in zip(hidden.astype(np.float64), lengths, strict=True):
        real = row[:length]
        rows.append({"mean": real.mean(0), "cls": real[0], "last_token": real[-1], "max": real.max(0)}[pooling])
    return np.stack(rows)


def mask_of(lengths: list[int], padded_length: int) -> Int32Array:
    return (np.arange(padded_length) < np.array(lengths)[:, None]).astype(np.int32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Float32Array, list[int]]:
    rows, length, hidden_size = draw(st.tuples(st.integers(1, 6), st.integers(1, 12), st.integers(1, 5)))
    values = st.floats(-100, 100, width=32)
    hidden = draw(arrays(np.float32, (rows, length, hidden_size), elements=values))
    return hidden, draw(st.lists(st.integers(1, length), min_size=rows, max_size=rows))


@pytest.mark.parametrize("pooling", Pooling)
@given(batch=batches(), bad=st.sampled_from(BAD_VALUES))
def test_pool_equals_a_loop_and_padding_never_counts(
    pooling: Pooling, batch: tuple[Float32Array, list[int]], bad: float
) -> None:
    hidden, lengths = batch
    mask = mask_of(lengths, hidden.shape[1])
    hidden[mask == 0] = bad
    pooled = pool(hidden, mask, pooling)
    assert pooled.dtype == np.float32
    np.testing.assert_allclose(pooled, reference(hidden, lengths, pooling), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("pooling", Pooling)
def test_nan_at_a_real_position_stays(pooling: Pooling) -> None:
    hidden = np.ones((2, 3, 4), np.float32)
    hidden[1, [0, 1]] = math.nan
    with np.errstate(invalid="ignore"):
        pooled = pool(hidden, mask_of([3, 2], 3), pooling)
    assert np.isfinite(pooled[0]).all()
    assert not np.isfinite(pooled[1]).any()


@pytest.mark.parametrize("pooling", Pooling)
def test_half_precision_is_pooled_in_single(pooling: Pooling) -> None:
    # 60000 + 60000 is over float16's 65504.
    hidden = np.full((1, 4, 2), 60_000, np.float16)
    np.testing.assert_array_equal(pool(hidden, mask_of([4], 4), pooling), np.full((1, 2), 60_000, np.float32))


@pytest.mark.parametrize("pooling", Pooling)
def test_pool_returns_an_array_of_its_own(pooling: Pooling) -> None:
    hidden = np.ones((1, 2, 3), np.float32)
    assert not np.shares_memory(pool(hidden, mask_of([2], 2), pooling), hidden)


@given(arrays(np.float32, (3, 7), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_normalize_gives_unit_vectors_of_the_same_direction(vectors: Float32Array) -> None:
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    unit = normalize(vectors)
    assert unit.dtype == np.float32
    for row, vector, norm in zip(unit, vectors, norms, strict=True):
        if norm > 1e-10:
            np.testing.assert_allclose(row, vector / norm, rtol=1e-5, atol=1e-6)


def test_normalize_keeps_zero_at_zero() -> None:
    assert not normalize(np.zeros((2, 3), np.float32)).any()
