import numpy as np
import pytest

from gateway.errors import EngineUnavailable
from gateway.pooling import normalize
from gateway.self_check import SelfCheck, describe_mismatch
from gateway.types import OutputKind
from tests.fakes import FakeEngine, encoding, expected_rows, make_spec

KNOWN = [encoding(*range(1, 30)), encoding(4, 5), encoding(6)]
CHECK = SelfCheck(KNOWN, normalize(expected_rows(KNOWN)))


@pytest.mark.parametrize("kind", OutputKind)
async def test_the_right_engine_passes_in_both_orders(kind: OutputKind) -> None:
    engine = FakeEngine(make_spec(output_kind=kind, max_batch_size=1))
    assert await CHECK.find_mismatch(engine) is None
    assert await CHECK.turned().find_mismatch(engine) is None
    lengths = [batch.input_ids.shape[1] for batch in engine.batches]
    assert lengths == [32, 4, 4, 4, 4, 32]


async def test_an_engine_that_fails() -> None:
    engine = FakeEngine(error=EngineUnavailable("Triton cannot be reached."))
    assert await CHECK.find_mismatch(engine) == "its self-check failed: Triton cannot be reached."


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_rows_that_are_not_finite_or_zero_differ(value: float) -> None:
    vectors = CHECK.embeddings.copy()
    vectors[1] = value
    assert "differ from its manifest's" in str(describe_mismatch(vectors, CHECK.embeddings))


def test_one_row_in_anothers_place_differs() -> None:
    assert describe_mismatch(CHECK.embeddings, CHECK.embeddings) is None
    assert "differ" in str(describe_mismatch(CHECK.embeddings[[0, 2, 1]], CHECK.embeddings))


def test_another_size_differs() -> None:
    assert describe_mismatch(CHECK.embeddings[:, :4], CHECK.embeddings) == (
        "its vectors are (3, 4), its manifest's (3, 8)"
    )
