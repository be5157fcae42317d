"""A model directory appears whole or not at all, whatever happens on the way."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine_build.errors import RepositoryError
from engine_build.mounts import is_mount_point
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


def model(root: Path, name: str) -> Path:
    """A directory that counts as a model's."""
    (root / name).mkdir(parents=True)
    (root / name / "config.pbtxt").touch()
    return root / name


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that the list of mounts names; a blank is written as \\040 there."""
    root = tmp_path / "on a volume"
    root.mkdir()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 27 0:21 / /proc rw\n23 27 0:22 / {str(root).replace(' ', chr(92) + '040')} rw - ext4 x rw\n")
    monkeypatch.setattr("engine_build.mounts.MOUNTS", mounts)
    return root


def test_mount_point_is_staged_in_another_model(mounted: Path) -> None:
    other = model(mounted, "other")
    with open_repository(mounted) as repository, repository.staged("model") as directory:
        assert other in directory.parents
        assert [path.name for path in mounted.iterdir()] == ["other"]
        (directory / "file").write_text("new")

    assert (mounted / "model" / "file").read_text() == "new"
    assert [path.name for path in other.iterdir()] == ["config.pbtxt"]
    assert not (mounted.parent / f".{mounted.name}.staging").exists()


@pytest.mark.parametrize("others", [[], ["other"]])
def test_mount_point_replaces(others: list[str], mounted: Path) -> None:
    for name in others:
        model(mounted, name)
    (model(mounted, "model") / "only in the old one").touch()

    publish(mounted, "new")

    assert {path.name for path in (mounted / "model").iterdir()} == {"file"}
    assert sorted(path.name for path in mounted.iterdir()) == ["model", *others]
    assert not list(mounted.glob("*/.staging"))


def test_mount_point_without_a_model(mounted: Path) -> None:
    publish(mounted, "first")

    assert [path.name for path in mounted.iterdir()] == ["model"]


@pytest.mark.parametrize("others", [[], ["other"]])
def test_mount_point_failure_keeps_the_old(others: list[str], mounted: Path) -> None:
    for name in others:
        model(mounted, name)
    (model(mounted, "model") / "file").write_text("old")

    with pytest.raises(KeyError):
        fail_while_writing(mounted)

    assert (mounted / "model" / "file").read_text() == "old"
    assert not list(mounted.glob("*/.staging"))


@pytest.mark.parametrize("moment", ["arriving", "old moved"])
def test_mount_point_killed_between_the_renames(moment: str, mounted: Path) -> None:
    (model(mounted, "model") / "file").write_text("old")
    arriving = mounted / "model@arriving"
    (model(mounted, "model@arriving") / "file").write_text("new")
    if moment == "old moved":
        (arriving / ".staging").mkdir()
        (mounted / "model").rename(arriving / ".staging" / "model")

    with open_repository(mounted):
        assert (mounted / "model" / "file").read_text() == "new"

    assert [path.name for path in mounted.iterdir()] == ["model"]
    assert not list(mounted.glob("*/.staging"))


def test_mount_point_leftovers_of_a_kill(mounted: Path) -> None:
    other = model(mounted, "other")
    (other / ".staging" / "model").mkdir(parents=True)
    (other / ".staging" / "gone@previous").mkdir()

    with open_repository(mounted):
        assert sorted(path.name for path in mounted.iterdir()) == ["gone", "other"]
    assert [path.name for path in other.iterdir()] == ["config.pbtxt"]


def test_without_a_list_of_mounts_devices_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_build.mounts.MOUNTS", tmp_path / "none")

    assert not is_mount_point(tmp_path)
    assert is_mount_point(Path("/proc"))


def test_real_mounts() -> None:
    assert is_mount_point(Path("/proc"))
    assert not is_mount_point(Path(__file__).parent)
