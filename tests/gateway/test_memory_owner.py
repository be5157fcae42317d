import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import memory_owner
from gateway.memory_owner import Owner, is_left_over, remove_left_over_files
from tests.gateway_process import ROOT


def test_names_of_a_living_owner() -> None:
    first, second = Owner(), Owner()
    names = [owner.next_name() for owner in (first, first, second, second)]
    assert len(set(names)) == 4
    assert not any(map(is_left_over, names))
    first.close()
    assert [is_left_over(name) for name in names] == [True, True, False, False]
    second.close()
    second.close()
    assert all(map(is_left_over, names))


def test_an_owner_stays_alive_while_others_read_the_folder() -> None:
    owner = Owner()
    name = owner.next_name()
    os.listdir(memory_owner.SHARED_MEMORY)  # closing the folder drops ordinary locks of the process
    for _ in range(2):
        assert not is_left_over(name)
    owner.close()


def test_an_owner_dies_with_its_process() -> None:
    code = "from gateway.memory_owner import Owner; owner = Owner(); print(owner.next_name(), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert not is_left_over(name)
        process.kill()
        process.wait()
        assert is_left_over(name)


@pytest.mark.parametrize("name", ["", "other", "embedding-gateway-output-", "embedding-gateway-123-x", "psm_1234"])
def test_names_of_others_are_never_left_over(name: str) -> None:
    assert not is_left_over(name)


def test_files_of_the_dead_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_owner, "SHARED_MEMORY", tmp_path)
    dead, alive = Owner(), Owner()
    left_over, used, foreign = (tmp_path / name for name in (dead.next_name(), alive.next_name(), "foreign"))
    for path in (left_over, used, foreign):
        path.touch()
    dead.close()
    remove_left_over_files()
    assert set(tmp_path.iterdir()) == {used, foreign}
    alive.close()
