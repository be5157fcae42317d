"""Runs the wheel's tritonserver. Used by __main__ before the gateway listens, and by the tests.

Triton runs in a session of its own, so that a terminal's Ctrl-C reaches only the gateway; `stop()` ends it in order,
and the kernel ends it when the gateway dies. A thread waits for its end, and starts it again where that is asked for.
"""

import http.client
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from gateway.backoff import Backoff
from gateway.embedded.preflight import HOST, Wheel, check_repository, check_shared_memory, choose_ports, find_wheel
from gateway.embedded.workspace import Workspace, is_one_ending, remove_leftovers
from gateway.errors import StartupError

logger = logging.getLogger(__name__)
EXIT_TIMEOUT_S = 5
"""How long Triton waits for requests in flight and for its instances when it is told to stop."""
KILL_AFTER_S = EXIT_TIMEOUT_S + 3
PORTS_TIMEOUT_S = 10
"""How long to wait for the Triton of a gateway that was killed: it takes about 4 s to end."""
STEADY_S = 60
"""Who ran for so long did not end for the reason that the one before it had."""
# Becomes tritonserver. PR_SET_PDEATHSIG (1) survives exec but not fork, so the new process has to ask for it itself.
LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the gateway has gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
LOG_LINE = re.compile(r"([IWEF])\d{4} \S+ \d+ \S+\] (.*)")
LIBRARY_ERROR = re.compile(r"(?:error: |\[libprotobuf (?:ERROR|FATAL) \S+\] )(.*)")
LOG_LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.ERROR}
NO_GPU = "CudaDriverHelper has not been initialized."
"""An error to Triton 2.51 wherever there is no GPU; expected here."""


class EmbeddedTriton:
    """A tritonserver on the loopback interface, for the length of a `with` block or from `start()` to `stop()`.

    Args:
        model_repository: folder of model directories; all of them must load.
        grpc_port: TCP port, 0 for any free one, as for the other two.
        http_port: serves health and statistics; the gateway itself speaks gRPC.
        metrics_port: serves Triton's own Prometheus metrics.
        log_file: takes Triton's log as it is; None sends the lines to this module's logger, Triton's INFO as debug.
        restart: start it again, on the same ports, whenever it ends by itself after it was ready once.
    """

    def __init__(
        self,
        model_repository: Path,
        *,
        grpc_port: int = 8001,
        http_port: int = 8000,
        metrics_port: int = 8002,
        log_file: Path | None = None,
        restart: bool = False,
    ) -> None:
        self._repository = model_repository
        self._ports = {"grpc": grpc_port, "http": http_port, "metrics": metrics_port}
        self._log_file = log_file
        self._restart = restart
        self._was_ready = False
        self._errors: deque[str] = deque(maxlen=20)
        self._process: subprocess.Popen[str] | None = None
        self._relay: threading.Thread | None = None
        self._stopping = threading.Event()
        self._starting = threading.Lock()
        """Held while a process is made: who has it after setting `_stopping` sees the last one."""
        self._leavings = ExitStack()
        """Removes what the process has in /dev/shm."""
        self._cleanup = ExitStack()

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint, as tritonclient takes it. Ports given as 0 are known after `start()`."""
        return f"{HOST}:{self._ports['grpc']}"

    @property
    def http_url(self) -> str:
        """Root of the HTTP endpoint."""
        return f"http://{HOST}:{self._ports['http']}"

    @property
    def metrics_url(self) -> str:
        """Address of Triton's Prometheus metrics."""
        return f"http://{HOST}:{self._ports['metrics']}/metrics"

    @property
    def pid(self) -> int:
        """Process id of tritonserver, which leads its own process group; 0 before `start()`."""
        return self._process.pid if self._process else 0

    def is_alive(self) -> bool:
        """Return whether tritonserver is running."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start tritonserver; return at once, before it has loaded the models.

        Raises:
            StartupError: this machine or environment cannot run it, a port is taken, or there is no model.
            RuntimeError: it runs already, or this is not the main thread: the kernel stops Triton when the thread
                that started it ends. (The thread that starts it again lives as long as Triton.)
        """
        if self.is_alive() or threading.current_thread() is not threading.main_thread():
            raise RuntimeError("EmbeddedTriton.start() is for the main thread, once until stop()")
        wheel = find_wheel()
        check_repository(self._repository)
        check_shared_memory()
        self._ports = free_ports(self._ports)
        remove_leftovers()
        self._errors.clear()
        self._stopping.clear()
        self._was_ready = False
        with ExitStack() as cleanup:
            cleanup.callback(self._remove_leavings)
            process = self._spawn(wheel)
            watch = threading.Thread(target=self._watch, args=[wheel, process], name="triton-watch", daemon=True)
            watch.start()
            cleanup.callback(self._end, watch)
            self._cleanup = cleanup.pop_all()

    def wait_ready(self, timeout_s: float) -> None:
        """Return when all models are loaded and all three ports answer.

        Raises:
            StartupError: tritonserver ended, or is not ready after `timeout_s` seconds; the message has its reason.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._answers("http", "/v2/health/ready") and self._answers("metrics", "/metrics")):
            if not self.is_alive():
                raise StartupError(f"the embedded Triton ended while starting: {self._reason()}")
            if time.monotonic() > deadline:
                raise StartupError(f"the embedded Triton was not ready within {timeout_s:g} s: {self._reason()}")
            time.sleep(0.05)
        self._was_ready = True

    def stop(self) -> None:
        """Stop tritonserver for good, and remove what it has in /dev/shm. Idempotent.

        Takes about 4 s, of which Triton spends 3 on ending its Python instances.
        """
        self._cleanup.close()

    def _spawn(self, wheel: Wheel) -> subprocess.Popen[str]:
        """Start the process, and a thread that reads its log."""
        workspace = self._leavings.enter_context(Workspace(wheel))
        command = server_command(wheel, workspace, self._repository, self._ports)
        process = subprocess.Popen(  # noqa: S603 - our own command, no shell
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command],
            env=server_environment(wheel, workspace),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=[workspace.lock],
            start_new_session=True,
            restore_signals=False,  # SIGPIPE stays ignored: when the gateway dies, so does the log's reader
        )
        self._process = process
        self._relay = threading.Thread(target=self._relay_log, args=[process.stdout], name="triton-log", daemon=True)
        self._relay.start()
        return process

    def _watch(self, wheel: Wheel, process: subprocess.Popen[str] | None) -> None:
        """Wait for tritonserver's end, and end what it leaves: instances outlive a server that crashed.

        Then start it again if it may be, until it is told to stop.
        """
        backoff = Backoff()
        while process:
            started = time.monotonic()
            code = process.wait()
            kill_group(process.pid)
            if self._stopping.is_set():
                return
            reason = f"the embedded Triton ended by itself, exit code {code}"
            if not (self._restart and self._was_ready):
                logger.error("%s", reason)
                return
            if time.monotonic() - started > STEADY_S:
                backoff.reset()
            process = self._start_again(wheel, reason, backoff)

    def _start_again(self, wheel: Wheel, reason: str, backoff: Backoff) -> subprocess.Popen[str] | None:
        """Try until it is started, and return the process; None when told to stop."""
        while True:
            pause_s = backoff.next_s()
            logger.error("%s: starting it again in %g s", reason, pause_s)
            self._remove_leavings()
            if self._stopping.wait(pause_s):
                return None
            with self._starting:
                if self._stopping.is_set():
                    return None
                try:
                    choose_ports(self._ports)
                    return self._spawn(wheel)
                except (StartupError, OSError) as error:
                    reason = f"the embedded Triton cannot be started: {error}"

    def _remove_leavings(self) -> None:
        self._leavings.close()

    def _end(self, watch: threading.Thread) -> None:
        """Ask tritonserver to end, wait KILL_AFTER_S, then kill it and its instances."""
        self._stopping.set()
        with self._starting:
            process = self._process
        if process is None:
            return
        process.terminate()
        try:
            watch.join(KILL_AFTER_S)
        finally:
            if watch.is_alive():
                kill_group(process.pid)
            watch.join()
            if self._relay:
                self._relay.join(timeout=1)

    def _answers(self, port: str, path: str) -> bool:
        connection = http.client.HTTPConnection(HOST, self._ports[port], timeout=1)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _relay_log(self, lines: IO[str]) -> None:
        """Pass Triton's lines on until it ends; keep its last errors."""
        with lines, self._log_file.open("a") if self._log_file else nullcontext() as file:
            for line in lines:
                level, message = parse_log_line(line)
                if level >= logging.ERROR:
                    self._errors.append(message)
                if file:
                    file.write(line)
                    file.flush()
                else:
                    logger.log(level, "triton: %s", message)

    def _reason(self) -> str:
        """Return the error that best says why Triton does not serve."""
        if self._relay and not self.is_alive():
            self._relay.join(timeout=1)  # the last lines are still being read
        errors = list(self._errors)
        failed = [error for error in errors if "failed to load '" in error]
        return "; ".join(failed[:1] or errors[:2]) or "it logged no error"


def free_ports(ports: dict[str, int]) -> dict[str, int]:
    """Return the ports as `choose_ports` does, after waiting for a Triton whose gateway was killed, if one has them.

    Raises:
        StartupError: a port is taken by another program, or may not be opened.
    """
    one_is_ending = is_one_ending()  # asked first: one that ends in between has left its ports
    try:
        return choose_ports(ports)
    except StartupError as error:
        if not one_is_ending:
            raise
        logger.warning("waiting for the Triton of a gateway that was killed to end: %s", error)
    give_up_at = time.monotonic() + PORTS_TIMEOUT_S
    while is_one_ending() and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return choose_ports(ports)


def server_command(wheel: Wheel, workspace: Workspace, repository: Path, ports: dict[str, int]) -> list[str]:
    """Return the argv of tritonserver.

    A model that does not load ends the server (`--exit-on-error`, its default): the gateway then has one reason to
    tell. The shared memory of an instance starts at Triton's 1 MiB and grows as needed, one [32,256,384] float32
    output to 13 MiB; it never shrinks.
    """
    options = {
        "model-repository": repository.resolve(),
        "backend-directory": workspace.backends,
        "backend-config": f"python,shm-region-prefix-name={workspace.region_prefix}",
        "exit-on-error": "true",
        "exit-timeout-secs": EXIT_TIMEOUT_S,
        "allow-gpu-metrics": "false",
        "pinned-memory-pool-byte-size": 0,
    }
    options |= {f"{name}-address": HOST for name in ports}
    options |= {f"{name}-port": port for name, port in ports.items()}
    return [
        str(wheel.server / "bin" / "tritonserver"),
        "--disable-auto-complete-config",
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def server_environment(wheel: Wheel, workspace: Workspace) -> dict[str, str]:
    """Return the environment of tritonserver, without the gateway's settings, which hold API keys.

    Its Python instances find their environment by the first `python3` on PATH; PYTHONPATH does not count. GPUs are
    hidden: this server has CPU models only.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GATEWAY_", "PYTHON"))}
    libraries = [str(wheel.libraries), str(workspace.libraries), environment.get("LD_LIBRARY_PATH", "")]
    return environment | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "CUDA_VISIBLE_DEVICES": "",
        # The wheel's ONNX Runtime starts a telemetry client unless told not to (observed, 1.32).
        "ORT_DISABLE_TELEMETRY": "1",
    }


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads or led, if any of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def parse_log_line(line: str) -> tuple[int, str]:
    """Return the logging level and the message of a line of Triton's log, a Python traceback cut off.

    Errors of its libraries have a form of their own; whatever else has none is a table, or printed by a model: debug.
    """
    if error := LIBRARY_ERROR.match(line):
        return logging.ERROR, error[1]
    match = LOG_LINE.match(line)
    if not match:
        return logging.DEBUG, line.rstrip()
    message = match[2].strip('"').split(r"\n\nAt:")[0]
    return logging.DEBUG if message == NO_GPU else LOG_LEVELS[match[1]], message
