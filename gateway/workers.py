"""Runs several processes that serve one socket, and replaces those that die. Called by __main__.

The first worker starts alone: what keeps it from starting keeps all of them, and is told once. A worker that ends is
replaced. One that ends before it listens is tried again after a pause while others listen, and ends the gateway when
none does. Each runs in a session of its own, so that a terminal's Ctrl-C reaches only the parent, which passes signals
on.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from gateway.backoff import Backoff
from gateway.errors import StartupError
from gateway.logs import configure_logging
from gateway.metrics import MULTIPROCESS_VARIABLE, forget_process
from gateway.server import graceful_shutdown_s, serve
from gateway.settings import Settings

_log = logging.getLogger("gateway")

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_S = 0.1
_KILL_AFTER_S = 5.0
"""How much longer than it may take a worker gets to stop."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made there has a name of its own


def run_workers(settings: Settings, listener: socket.socket, on_listening: Callable[[], None]) -> int:
    """Serve with `settings.workers` processes until SIGTERM or SIGINT; return the exit code.

    Args:
        settings: how they run.
        listener: bound, not listening.
        on_listening: called once all listen.
    """
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="embedding-gateway-metrics-", dir=place) as folder:
        # Read by prometheus_client when a worker imports it.
        os.environ[MULTIPROCESS_VARIABLE] = folder
        return Workers(settings, listener, Path(folder), on_listening).run()


@dataclass(eq=False, slots=True)
class _Worker:
    """One process; it says on `pipe` that it listens."""

    process: BaseProcess
    pipe: Connection
    listens: bool = False


class Workers:
    """The processes and their parent's loop.

    Args:
        settings: how they run.
        listener: bound, not listening; closed here when told to stop, so that the workers' closing closes the port.
        metrics_folder: empty, shared by all workers.
        on_listening: called once all listen.
    """

    def __init__(
        self, settings: Settings, listener: socket.socket, metrics_folder: Path, on_listening: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._folder = metrics_folder
        self._on_listening = on_listening
        self._workers: list[_Worker] = []
        self._signals: list[int] = []
        self._told = False
        self._backoff = Backoff()
        self._start_at = 0.0
        self._kill_at: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        """Run until told to stop, or until a worker cannot start and none listens; return the exit code."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._note_signal)
        resource_tracker.ensure_running()  # else the first worker's start makes it, which unblocks the signals
        self._start_worker()
        while self._workers:
            wait([worker.process.sentinel for worker in self._workers], _POLL_S)
            self._pass_signals_on()
            self._note_listening()
            for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
                self._bury(worker)
        return self._exit_code

    def _start_worker(self) -> None:
        context = multiprocessing.get_context("spawn")  # gRPC and threads do not survive a fork
        pipe, workers_end = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(self._settings, self._listener, self._folder, workers_end))
        # Inherited: a signal that comes before the worker has its handlers waits for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        workers_end.close()
        self._workers.append(_Worker(process, pipe))

    def _note_listening(self) -> None:
        """Start the missing ones when all others listen, and tell when all do for the first time."""
        for worker in self._workers:
            if not worker.listens and worker.pipe.poll():
                with suppress(EOFError):  # it ended without a word
                    worker.listens = worker.pipe.recv()
                    self._backoff.reset()
        if self._kill_at is not None or not all(worker.listens for worker in self._workers):
            return
        if len(self._workers) == self._settings.workers and not self._told:
            self._told = True
            self._on_listening()
        while len(self._workers) < self._settings.workers and time.monotonic() >= self._start_at:
            self._start_worker()

    def _bury(self, worker: _Worker) -> None:
        """Remove a worker that ended; replace it at once if it ever listened, else later, if another one does."""
        process = worker.process
        process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        forget_process(process.pid or 0, self._folder)
        if self._kill_at is not None:
            return
        if worker.listens:
            _log.error("worker %s ended by itself, exit code %s: replacing it", process.pid, process.exitcode)
            self._start_worker()
        elif any(other.listens for other in self._workers):
            pause_s = self._backoff.next_s()
            self._start_at = time.monotonic() + pause_s
            _log.error("a worker could not start, exit code %s: trying again in %g s", process.exitcode, pause_s)
        else:
            _log.error("a worker could not start, exit code %s: stopping", process.exitcode)
            self._exit_code = 1
            self._stop(signal.SIGTERM)

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _pass_signals_on(self) -> None:
        while self._signals:
            self._stop(self._signals.pop(0))
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for worker in self._workers:
                worker.process.kill()

    def _stop(self, number: int) -> None:
        """Pass the signal to all workers; from then on none is replaced."""
        self._listener.close()
        self._kill_at = time.monotonic() + self._settings.drain_s + graceful_shutdown_s(self._settings) + _KILL_AFTER_S
        for worker in self._workers:
            if worker.process.pid and worker.process.is_alive():
                os.kill(worker.process.pid, number)


def _work(settings: Settings, listener: socket.socket, metrics_folder: Path, pipe: Connection) -> None:
    """Be a worker."""
    os.setsid()
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    configure_logging(settings.log_level, settings.log_format)
    threading.Thread(target=_end_with_parent, args=[metrics_folder], daemon=True).start()
    try:
        serve(settings, listener, lambda: pipe.send(True), metrics_folder)
    except StartupError as error:
        _log.critical("cannot start: %s", error)
        sys.exit(1)
    finally:
        for number in _STOP_SIGNALS:  # it ends already: another one has nothing to add but a traceback
            signal.signal(number, signal.SIG_IGN)


def _end_with_parent(metrics_folder: Path) -> None:
    """Stop this worker if its parent was killed, and remove what the parent would have removed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(metrics_folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)
