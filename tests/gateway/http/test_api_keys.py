import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.errors import StartupError
from gateway.http.api_keys import ApiKeys
from gateway.settings import Settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_without_keys_none_is_needed() -> None:
    assert not ApiKeys([], None).required


def test_any_of_several() -> None:
    keys = ApiKeys([SecretStr("one"), SecretStr("zwei-ß")], None)
    assert keys.required
    assert keys.accepts(b"one")
    assert keys.accepts("zwei-ß".encode())
    for wrong in (b"", b"on", b"one ", b"One", b"one,zwei-\xc3\x9f", b"\xff"):
        assert not keys.accepts(wrong)


def test_file(path: Path) -> None:
    path.write_text("# for the crawler\nfirst\n\n  second  \r\n")
    keys = ApiKeys([SecretStr("third")], path)
    assert [keys.accepts(key) for key in (b"first", b"second", b"third")] == [True] * 3
    assert not keys.accepts(b"")
    assert not keys.accepts(b"# for the crawler")


def test_file_is_read_again_when_it_changes(path: Path) -> None:
    path.write_text("old")
    keys = ApiKeys([], path)
    replacement = path.with_suffix(".new")
    replacement.write_text("new")
    os.utime(replacement, ns=(0, path.stat().st_mtime_ns + 1))
    replacement.replace(path)
    assert keys.accepts(b"new")
    assert not keys.accepts(b"old")


def test_file_that_vanishes_leaves_its_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("key")
    keys = ApiKeys([], path)
    path.unlink()
    assert keys.accepts(b"key")
    assert keys.accepts(b"key")
    assert len(caplog.records) == 1
    path.write_bytes(b"\xff\xfe")
    assert keys.accepts(b"key")
    path.write_text("another")
    assert not keys.accepts(b"key")
    assert keys.accepts(b"another")


def test_empty_file_admits_nobody(path: Path) -> None:
    path.touch()
    keys = ApiKeys([], path)
    assert keys.required
    assert not keys.accepts(b"")


def test_missing_file_stops_the_start(path: Path) -> None:
    with pytest.raises(StartupError, match="keys"):
        ApiKeys([], path)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_API_KEYS", "first-key, second-key,")
    settings = Settings()
    assert [key.get_secret_value() for key in settings.api_keys] == ["first-key", "second-key"]
    assert "first-key" not in repr(settings)
