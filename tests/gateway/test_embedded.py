"""The embedded Triton's checks, its workspace and its life, with a script in place of tritonserver."""

import errno
import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import backoff
from gateway.embedded import EmbeddedTriton, preflight, server
from gateway.embedded import workspace as workspaces
from gateway.embedded.preflight import Wheel
from gateway.embedded.workspace import Workspace
from gateway.errors import StartupError

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBPYTHON = f"libpython{VERSION}.so.1.0"


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(preflight, "SHARED_MEMORY", folder)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    model = tmp_path / "triton_repo" / "model"
    model.mkdir(parents=True)
    (model / "config.pbtxt").touch()
    return model.parent


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """A wheel whose server is still to be written by the test."""
    server = tmp_path / "pytriton" / "tritonserver"
    for file in ("bin/tritonserver", "backends/python/libtriton_python.so", "stub", LIBPYTHON):
        (server / file).parent.mkdir(parents=True, exist_ok=True)
        (server / file).touch()
    return Wheel(server, tmp_path / "libs", server / "stub", server / LIBPYTHON)


class TestPlatform:
    @pytest.mark.parametrize(
        ("system", "machine", "libc", "told"),
        [
            pytest.param("Darwin", "arm64", ("", ""), "not on Darwin arm64", id="macos"),
            pytest.param("Linux", "riscv64", ("glibc", "2.39"), "not on Linux riscv64", id="architecture"),
            pytest.param("Linux", "x86_64", ("glibc", "2.31"), "glibc 2.35 .* here is glibc 2.31", id="old glibc"),
            pytest.param("Linux", "x86_64", ("musl", "1.2.4"), "here is musl 1.2.4", id="musl"),
            pytest.param("Linux", "x86_64", ("", ""), "needs glibc", id="unknown libc"),
        ],
    )
    def test_refused(
        self, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str], told: str
    ) -> None:
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(platform, "libc_ver", lambda: libc)
        with pytest.raises(StartupError, match=told):
            preflight.find_wheel()

    @pytest.mark.parametrize(("machine", "version"), [("x86_64", "2.35"), ("aarch64", "2.100")])
    def test_accepted(self, monkeypatch: pytest.MonkeyPatch, machine: str, version: str) -> None:
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", version))
        preflight.check_platform()


class TestFindWheel:
    def test_of_this_environment(self) -> None:
        wheel = preflight.find_wheel()
        assert (wheel.server / "bin" / "tritonserver").is_file()
        assert wheel.libraries.is_dir()
        assert wheel.stub.parent.name == VERSION
        assert "pytriton" not in sys.modules

    @pytest.mark.parametrize("missing", ["pytriton", "onnxruntime"])
    def test_package_missing(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
        with pytest.raises(StartupError, match=rf"needs the package {missing}: .*pip install '\.\[embedded\]'"):
            preflight.find_wheel()

    def test_numpy_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.1.0")
        with pytest.raises(StartupError, match=r"numpy below 2, and numpy 2\.1\.0 is installed: run"):
            preflight.find_wheel()

    def test_no_stub_for_this_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preflight, "PYTHON_VERSION", "3.99")
        with pytest.raises(StartupError, match=r"does not support Python 3\.99: .* 3\.11 or 3\.12"):
            preflight.find_wheel()


class TestFindLibpython:
    @pytest.fixture(autouse=True)
    def nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A Python that has its library in none of the usual places."""
        variables = {"LIBDIR": str(tmp_path / "libdir"), "MULTIARCH": "x86_64-linux-gnu"}
        monkeypatch.setattr(sysconfig, "get_config_vars", lambda *names: [variables[name] for name in names])
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "prefix"))
        monkeypatch.setattr(preflight, "LOADER_CACHE", tmp_path / "ld.so.cache")

    @pytest.mark.parametrize("folder", ["libdir", "prefix/lib", "libdir/x86_64-linux-gnu"])
    def test_in_a_usual_place(self, tmp_path: Path, folder: str) -> None:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / LIBPYTHON).touch()
        assert preflight.find_libpython() == tmp_path / folder / LIBPYTHON

    def test_left_to_the_loader(self, tmp_path: Path) -> None:
        (tmp_path / "ld.so.cache").write_bytes(b"\0" + LIBPYTHON.encode() + b"\0")
        assert preflight.find_libpython() is None

    def test_missing(self, tmp_path: Path) -> None:
        (tmp_path / "ld.so.cache").write_bytes(b"\0libpython2.7.so.1.0\0")
        with pytest.raises(StartupError, match=rf"{LIBPYTHON}: .*apt install libpython{VERSION}.*--enable-shared"):
            preflight.find_libpython()

    def test_a_build_without_these_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sysconfig, "get_config_vars", lambda *names: [None for _ in names])
        with pytest.raises(StartupError, match=LIBPYTHON):
            preflight.find_libpython()


class TestRepository:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match=r"no model in the repository .*: .*python -m engine_build all"):
            preflight.check_repository(tmp_path / "none")

    def test_folders_without_a_config(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        with pytest.raises(StartupError, match="no model in the repository"):
            preflight.check_repository(tmp_path)

    def test_with_a_model(self, repository: Path) -> None:
        preflight.check_repository(repository)


class TestSharedMemory:
    def free(self, monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=mib << 20))

    def test_missing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(preflight, "SHARED_MEMORY", tmp_path / "none")
        with pytest.raises(StartupError, match="mount a tmpfs"):
            preflight.check_shared_memory()

    def test_too_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free(monkeypatch, 31)
        with pytest.raises(StartupError, match=r"needs 32 MiB, with only 31 MiB free .*--shm-size=1g"):
            preflight.check_shared_memory()

    @pytest.mark.parametrize(("mib", "warnings"), [(64, 1), (256, 0)])
    def test_warned_of(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mib: int, warnings: int
    ) -> None:
        self.free(monkeypatch, mib)
        preflight.check_shared_memory()
        assert ["--shm-size" in message for message in caplog.messages] == [True] * warnings


class TestPorts:
    @pytest.mark.parametrize("name", ["grpc", "http", "metrics"])
    def test_busy(self, name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            ports = {"grpc": 0, "http": 0, "metrics": 0} | {name: port}
            with pytest.raises(StartupError, match=rf"{name} port {port} .*GATEWAY_EMBEDDED_{name.upper()}_PORT"):
                preflight.choose_ports(ports)

    def test_the_same_twice(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(StartupError, match=rf"http port {port} .*in use"):
            preflight.choose_ports({"grpc": port, "http": port})

    def test_forbidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def bind(_socket: socket.socket, _address: Any) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(socket.socket, "bind", bind)
        with pytest.raises(StartupError, match=r"grpc port 80 .*Permission denied"):
            preflight.choose_ports({"grpc": 80})

    def test_zero_is_any_free_one(self) -> None:
        chosen = preflight.choose_ports({"grpc": 0, "http": 0, "metrics": 0})
        assert list(chosen) == ["grpc", "http", "metrics"]
        assert len(set(chosen.values())) == 3
        assert preflight.choose_ports(chosen) == chosen


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ('I1130 11:21:41.469582 4782 model_lifecycle.cc:472] "loading: m:1"\n', logging.DEBUG, "loading: m:1"),
        ('W1130 11:21:41.469582 4782 pb_stub.cc:1] "slow"\n', logging.WARNING, "slow"),
        ('E1130 11:21:41.469582 4782 x.cc:642] "bad\\n\\nAt:\\n  /m.py(1): f\\n"\n', logging.ERROR, "bad"),
        (f'E1130 11:21:41.469582 4782 server.cc:241] "{server.NO_GPU}"\n', logging.DEBUG, server.NO_GPU),
        ("error: creating server: Internal\n", logging.ERROR, "creating server: Internal"),
        ("[libprotobuf ERROR /a/b/text_format.cc:337] 15:4: no field\n", logging.ERROR, "15:4: no field"),
        ("| tiny  | 1       | READY  |\n", logging.DEBUG, "| tiny  | 1       | READY  |"),
    ],
)
def test_log_lines(line: str, level: int, message: str) -> None:
    assert server.parse_log_line(line) == (level, message)


class TestWorkspace:
    def test_holds_what_the_server_needs_and_goes_with_its_regions(self, shared_memory: Path, wheel: Wheel) -> None:
        other = shared_memory / "embedding-gateway-1"
        other.touch()
        with Workspace(wheel) as workspace:
            assert {path.name for path in (workspace.backends / "python").iterdir()} == {"libtriton_python.so", "stub"}
            assert (workspace.libraries / LIBPYTHON).resolve() == wheel.libpython
            assert workspace.region_prefix.startswith(f"embedding-gateway-{os.getpid()}-")
            (shared_memory / f"{workspace.region_prefix}region").touch()
        assert list(shared_memory.iterdir()) == [other]

    def test_without_libpython(self, shared_memory: Path, wheel: Wheel) -> None:
        with Workspace(replace(wheel, libpython=None)) as workspace:
            assert list(workspace.libraries.iterdir()) == []


class TestLeftovers:
    def leave(self, shared_memory: Path) -> Path:
        folder = shared_memory / "embedding-gateway-1-abc"
        (folder / "backends").mkdir(parents=True)
        (folder / "lock").touch()
        (shared_memory / f"{folder.name}.region").touch()
        return folder

    def test_of_the_dead_are_removed(self, shared_memory: Path) -> None:
        self.leave(shared_memory)
        workspaces.remove_leftovers()
        assert list(shared_memory.iterdir()) == []

    def test_of_the_living_stay(self, shared_memory: Path, wheel: Wheel) -> None:
        with Workspace(wheel) as workspace:
            workspaces.remove_leftovers()
            assert workspace.backends.is_dir()

    def test_stay_while_a_child_holds_the_lock(self, shared_memory: Path) -> None:
        folder = self.leave(shared_memory)
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])
        workspaces.remove_leftovers()
        assert folder.is_dir()
        child.kill()
        child.wait()
        workspaces.remove_leftovers()
        assert list(shared_memory.iterdir()) == []

    def test_of_other_users_stay(self, shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = self.leave(shared_memory)
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        workspaces.remove_leftovers()
        assert folder.is_dir()

    def test_without_a_lock_stay(self, shared_memory: Path) -> None:
        folder = self.leave(shared_memory)
        (folder / "lock").rename(folder / "lock.new")
        workspaces.remove_leftovers()
        assert folder.is_dir()


class TestPortsOfAKilledGateway:
    """Its Triton has them until it ends. A child that holds the lock stands for that Triton."""

    def leave(self, shared_memory: Path, gateway_pid: int) -> subprocess.Popen[bytes]:
        folder = shared_memory / f"embedding-gateway-{gateway_pid}-abc"
        folder.mkdir()
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])

    def ended_process(self) -> int:
        process = subprocess.Popen(["true"])
        process.wait()
        return process.pid

    def test_are_waited_for(self, shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
        triton = self.leave(shared_memory, self.ended_process())
        with socket.create_server(("127.0.0.1", 0)) as held:

            def end() -> None:
                held.close()
                triton.kill()
                triton.wait()

            ports = {"grpc": held.getsockname()[1]}
            timer = threading.Timer(0.5, end)
            timer.start()
            assert server.free_ports(ports) == ports
            timer.join()
        (message,) = caplog.messages
        assert message.startswith("waiting for the Triton of a gateway that was killed to end: Triton's grpc port ")

    def test_are_not_waited_for_without_end(self, shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "PORTS_TIMEOUT_S", 0.2)
        triton = self.leave(shared_memory, self.ended_process())
        with socket.create_server(("127.0.0.1", 0)) as held, pytest.raises(StartupError, match="cannot be opened"):
            server.free_ports({"grpc": held.getsockname()[1]})
        triton.kill()
        triton.wait()

    def test_of_a_living_gateway_are_taken(self, shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
        triton = self.leave(shared_memory, os.getpid())
        with socket.create_server(("127.0.0.1", 0)) as held, pytest.raises(StartupError, match="cannot be opened"):
            server.free_ports({"grpc": held.getsockname()[1]})
        assert caplog.messages == []
        triton.kill()
        triton.wait()


def test_environment_of_the_server(
    shared_memory: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATEWAY_API_KEYS", "secret")
    monkeypatch.setenv("PYTHONHOME", "/elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    with Workspace(wheel) as workspace:
        environment = server.server_environment(wheel, workspace)
        assert environment["LD_LIBRARY_PATH"] == f"{wheel.libraries}:{workspace.libraries}:/opt/lib"
    assert not {"GATEWAY_API_KEYS", "PYTHONHOME"} & environment.keys()
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_the_launcher_gives_up_when_its_parent_has_gone() -> None:
    command = [sys.executable, "-I", "-S", "-c", server.LAUNCHER, str(os.getpid() + 1), "/bin/true"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "the gateway has gone" in result.stderr


SERVES = """
import http.server, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
ports = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
for name in ("http-port", "metrics-port"):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(ports[name])), Handler)
    threading.Thread(target=server.serve_forever).start()
print("W1130 11:21:41.469582 4782 x.cc:1] \\"serving\\"", flush=True)
"""
FAILS = """
print("E1130 11:21:41.469582 4782 x.cc:642] \\"failed to load 'm' version 1: Internal: broken\\"")
print("E1130 11:21:41.469582 4782 x.cc:642] \\"another\\"")
raise SystemExit(1)
"""
HANGS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


@contextmanager
def fake(
    wheel: Wheel,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    log_file: Path | None = None,
    restart: bool = False,
) -> Iterator[EmbeddedTriton]:
    """Run an EmbeddedTriton whose server is a Python script; that finds its own libpython."""
    monkeypatch.setattr(server, "find_wheel", lambda: replace(wheel, libpython=None))
    program = wheel.server / "bin" / "tritonserver"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    options = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}
    with EmbeddedTriton(repository, **options, log_file=log_file, restart=restart) as triton:
        yield triton


@pytest.mark.usefixtures("shared_memory")
class TestLife:
    def test_serves_until_it_is_stopped(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with fake(wheel, repository, monkeypatch, SERVES) as triton:
            triton.wait_ready(20)
            assert triton.is_alive()
            assert os.getpgid(triton.pid) == triton.pid != os.getpgrp()
            with pytest.raises(RuntimeError, match=r"once until stop\(\)"):
                triton.start()
        assert not triton.is_alive()
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
            "triton: serving"
        ]
        triton.stop()

    def test_log_into_a_file(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        log = tmp_path / "triton.log"
        with fake(wheel, repository, monkeypatch, SERVES, log) as triton:
            triton.wait_ready(20)
        assert log.read_text() == 'W1130 11:21:41.469582 4782 x.cc:1] "serving"\n'

    def test_the_reason_of_an_end(self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with (
            fake(wheel, repository, monkeypatch, FAILS) as triton,
            pytest.raises(StartupError, match=r"starting: failed to load 'm' version 1: Internal: broken$"),
        ):
            triton.wait_ready(20)

    def test_an_end_without_a_word(self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with (
            fake(wheel, repository, monkeypatch, "raise SystemExit(3)") as triton,
            pytest.raises(StartupError, match="ended while starting: it logged no error"),
        ):
            triton.wait_ready(20)

    def test_not_ready_in_time_and_deaf(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        monkeypatch.setattr(server, "KILL_AFTER_S", 0.2)
        with fake(wheel, repository, monkeypatch, HANGS) as triton:
            while "triton: deaf" not in caplog.messages:
                time.sleep(0.01)
            with pytest.raises(StartupError, match=r"not ready within 0\.1 s"):
                triton.wait_ready(0.1)
        assert not triton.is_alive()

    def test_a_crash_is_told(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with fake(wheel, repository, monkeypatch, HANGS) as triton:
            os.killpg(triton.pid, 9)
            while triton.is_alive() or not caplog.messages:
                time.sleep(0.01)
        assert caplog.messages == ["the embedded Triton ended by itself, exit code -9"]

    def test_one_that_keeps_ending_is_started_again_after_longer_and_longer_pauses(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(backoff, "_FIRST_S", 0.1)
        with fake(wheel, repository, monkeypatch, SERVES, restart=True) as triton:
            triton.wait_ready(20)
            (wheel.server / "bin" / "tritonserver").write_text(f"#!{sys.executable}\nraise SystemExit(3)")
            os.killpg(triton.pid, 9)
            while sum("ended by itself" in message for message in caplog.messages) < 3:
                time.sleep(0.01)
        assert [message for message in caplog.messages if "ended by itself" in message][:3] == [
            "the embedded Triton ended by itself, exit code -9: starting it again in 0.1 s",
            "the embedded Triton ended by itself, exit code 3: starting it again in 0.2 s",
            "the embedded Triton ended by itself, exit code 3: starting it again in 0.4 s",
        ]
        assert not triton.is_alive()

    def test_one_that_was_never_ready_is_not_started_again(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with fake(wheel, repository, monkeypatch, "raise SystemExit(3)", restart=True):
            while not caplog.messages:
                time.sleep(0.01)
        assert caplog.messages == ["the embedded Triton ended by itself, exit code 3"]

    def test_while_its_port_is_taken_it_is_tried_again(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(backoff, "_FIRST_S", 0.1)
        with fake(wheel, repository, monkeypatch, SERVES, restart=True) as triton:
            triton.wait_ready(20)
            with socket.create_server(("127.0.0.1", int(triton.grpc_url.rpartition(":")[2]))):
                os.killpg(triton.pid, 9)
                while not any("cannot be started: Triton's grpc port" in message for message in caplog.messages):
                    time.sleep(0.01)
            while not triton.is_alive():
                time.sleep(0.01)
            triton.wait_ready(20)

    def test_nothing_is_left_when_the_start_fails(
        self, wheel: Wheel, repository: Path, monkeypatch: pytest.MonkeyPatch, shared_memory: Path
    ) -> None:
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(FileNotFoundError), fake(wheel, repository, monkeypatch, ""):
            pass
        assert list(shared_memory.iterdir()) == []

    def test_only_in_the_main_thread(self, repository: Path) -> None:
        errors: list[Exception] = []

        def start() -> None:
            try:
                EmbeddedTriton(repository).start()
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert "main thread" in str(errors[0])


def test_before_the_start(repository: Path) -> None:
    triton = EmbeddedTriton(repository)
    assert (triton.pid, triton.is_alive()) == (0, False)
    assert triton.grpc_url == "127.0.0.1:8001"
    assert triton.http_url == "http://127.0.0.1:8000"
    assert triton.metrics_url == "http://127.0.0.1:8002/metrics"
    triton.stop()


def test_checks_come_before_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(StartupError, match="no model in the repository"):
        stack.enter_context(EmbeddedTriton(tmp_path))
