"""A long command's output goes to its file, its progress to the log, and an interrupt ends it."""

import logging
import sys
from pathlib import Path

import pytest

from engine_build import process_log
from engine_build.process_log import run_logged


def test_progress_and_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(process_log, "PROGRESS_EVERY_S", 0.0)
    code = "print('[W] [TRT] norm may overflow'); print('[W] [TRT] norm may overflow'); print('[W] something else')"

    outcome = run_logged([sys.executable, "-c", code], tmp_path, tmp_path / "log")

    assert (outcome.returncode, outcome.passed) == (0, False)
    assert (tmp_path / "log").read_text().endswith(outcome.text)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["[TRT] norm may overflow"]
    assert "still at it after 0 s: [W] something else" in caplog.text


def test_interrupt_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process_log, "_show_warning", interrupt)
    code = "import time; print('started', flush=True); time.sleep(600)"

    with pytest.raises(KeyboardInterrupt):
        run_logged([sys.executable, "-c", code], tmp_path, tmp_path / "log")
