"""A model directory appears whole or not at all, whatever happens on the way."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine_build.errors import RepositoryError
from engine_build.repository import open_repository

WRITE = """
import os, pathlib, signal, sys
from engine_build.repository import open_repository
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
{prelude}
with open_repository(pathlib.Path(sys.argv[1])) as repository:
    with repository.staged("model") as directory:
        (directory / "file").write_text("new")
        {during}
"""
DIE_BETWEEN_RENAMES = """
rename = pathlib.Path.rename
pathlib.Path.rename = lambda self, target: (rename(self, target), die())
"""


def publish(root: Path, text: str, name: str = "model") -> None:
    with open_repository(root) as repository, repository.staged(name) as directory:
        (directory / "file").write_text(text)


def fail_while_writing(root: Path) -> None:
    with open_repository(root) as repository, repository.staged("model") as directory:
        (directory / "file").write_text("new")
        raise KeyError


def killed_run(root: Path, prelude: str = "", during: str = "") -> None:
    code = WRITE.format(prelude=prelude, during=during)
    run = subprocess.run([sys.executable, "-c", code, str(root)], check=False, cwd=Path(__file__).parents[2])
    assert run.returncode == -9


def test_publish_and_replace(tmp_path: Path) -> None:
    root = tmp_path / "models" / "triton_repo"
    publish(root, "old")
    (root / "model" / "only in the old one").touch()
    publish(root, "other", "other")
    publish(root, "new")

    assert (root / "model" / "file").read_text() == "new"
    assert [path.name for path in (root / "model").iterdir()] == ["file"]
    assert sorted(path.name for path in root.iterdir()) == ["model", "other"]
    assert [path.name for path in root.parent.iterdir()] == ["triton_repo"]


def test_nothing_is_staged_where_triton_looks(tmp_path: Path) -> None:
    root = tmp_path / "triton_repo"
    with open_repository(root) as repository, repository.staged("model") as directory:
        assert directory.is_dir()
        assert list(root.iterdir()) == []


def test_failure_keeps_the_old_and_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "triton_repo"
    publish(root, "old")

    with pytest.raises(KeyError):
        fail_while_writing(root)

    assert (root / "model" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("old", [None, "old"])
def test_killed_while_writing(old: str | None, tmp_path: Path) -> None:
    root = tmp_path / "triton_repo"
    if old:
        publish(root, old)

    killed_run(root, during="die()")

    assert [path.read_text() for path in root.rglob("file")] == ([old] if old else [])
    publish(root, "other", "other")
    assert list(tmp_path.iterdir()) == [root]


def test_killed_between_the_renames(tmp_path: Path) -> None:
    root = tmp_path / "triton_repo"
    publish(root, "old")

    killed_run(root, prelude=DIE_BETWEEN_RENAMES)
    assert not (root / "model").exists()

    with open_repository(root):
        assert (root / "model" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [root]


def test_failed_rename_puts_the_old_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "triton_repo"
    publish(root, "old")
    rename = Path.rename

    def fail_for_the_new(self: Path, target: Path) -> Path:
        if self.name == "model" and self.parent != root:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(RepositoryError, match="No space left on device"):
        publish(root, "new")

    assert (root / "model" / "file").read_text() == "old"


def test_builds_take_turns(tmp_path: Path) -> None:
    root = tmp_path / "triton_repo"
    other = threading.Thread(target=publish, args=(root, "second"))
    with open_repository(root) as repository, repository.staged("model") as directory:
        other.start()
        other.join(0.2)
        assert other.is_alive()
        (directory / "file").write_text("first")
    other.join(10)

    assert (root / "model" / "file").read_text() == "second"


def test_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "triton_repo").touch()

    with pytest.raises(RepositoryError, match=r"cannot use .*triton_repo"), open_repository(tmp_path / "triton_repo"):
        pass


def test_root_on_a_file_system_of_its_own() -> None:
    with pytest.raises(RepositoryError, match="is a mount point"), open_repository(Path("/proc")):
        pass
