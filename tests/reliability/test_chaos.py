"""A short form of `make chaos`, and its bookkeeping."""

from collections import Counter
from pathlib import Path

import pytest

from tests.reliability.chaos import Report, run_chaos
from tests.reliability.restartable import RestartableTriton


def test_every_answer_is_right_or_a_documented_error(
    triton: RestartableTriton, model_repository: Path, tmp_path: Path
) -> None:
    log = tmp_path / "gateway.log"
    report = run_chaos(triton, model_repository, log, seconds=14, rate=10, seed=2, workers=2)
    assert not report.wrong
    assert report.balances, report
    assert report.outcomes["200"] > 10
    assert report.faults
    assert max(report.recoveries_s.values()) < 5  # measured: below 2; the machine may be busy
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("counted", "balances"),
    [
        pytest.param({"200": 7, "503": 1, "499": 2}, True, id="all accounted for"),
        pytest.param({"200": 8, "503": 1, "499": 1}, True, id="one was answered as its caller left"),
        pytest.param({"200": 7, "503": 1, "499": 1}, False, id="one is missing"),
        pytest.param({"200": 6, "503": 2, "499": 2}, False, id="one ended as something else"),
    ],
)
def test_the_books(counted: dict[str, int], balances: bool) -> None:
    outcomes = Counter({"200": 7, "503": 1, "left": 2})
    assert Report(sent=10, outcomes=outcomes, counted=counted).balances is balances
