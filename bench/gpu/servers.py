"""Starts Triton, gateways and infinity-emb on free ports of the loopback interface, and stops them."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.processes import ROOT, Server, free_port, wait_ready
from gateway.embedded import EmbeddedTriton

_ALL_WORKERS_TIMEOUT_S = 60
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Triton:
    """A running Triton.

    Attributes:
        grpc: host:port of its gRPC endpoint.
        http: root of its HTTP endpoint.
    """

    grpc: str
    http: str

    def version(self) -> str:
        """Return what it says of itself."""
        with urllib.request.urlopen(f"{self.http}/v2") as answer:
            return str(json.load(answer)["version"])

    def executed(self, model: str) -> tuple[int, int]:
        """Return rows and executions of a model since the start."""
        with urllib.request.urlopen(f"{self.http}/v2/models/{model}/stats") as answer:
            stats = json.load(answer)["model_stats"][0]
        return int(stats["inference_count"]), int(stats["execution_count"])


@contextmanager
def run_triton(command: str | None, repository: Path, log: Path) -> Iterator[Triton]:
    """Run a Triton until the end of the block.

    Args:
        command: takes the repository and tritonserver's options; None runs the wheel's server, for models on the CPU.
        repository: of the models.
        log: takes its output.
    """
    if command is None:
        with EmbeddedTriton(repository, grpc_port=0, http_port=0, metrics_port=0, log_file=log) as embedded:
            embedded.wait_ready(120)
            yield Triton(embedded.grpc_url, embedded.http_url)
        return
    grpc, http, metrics = free_port(), free_port(), free_port()
    ports = [f"--grpc-port={grpc}", f"--http-port={http}", f"--metrics-port={metrics}"]
    with _run([command, str(repository), *ports], dict(os.environ), log) as process:
        wait_ready(process, f"http://127.0.0.1:{http}/v2/health/ready", log)
        yield Triton(f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}")


@contextmanager
def run_gateway(
    triton: Triton, repository: Path, models: Sequence[str], workers: int, log: Path, **settings: object
) -> Iterator[Server]:
    """Run the gateway, and begin the block when all its workers serve."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    settings = {
        "port": port,
        "triton_url": triton.grpc,
        "model_repository": repository,
        "models": ",".join(models),
        "workers": workers,
        "drain_s": 0,
        "max_queue_s": 60,  # a load that begins on a cold engine is to wait, not to be refused
        "request_timeout_s": 60,
        "log_level": "warning",
        **settings,
    }
    environment |= {f"GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}
    with _run([sys.executable, "-m", "gateway"], environment, log) as process:
        wait_ready(process, f"http://127.0.0.1:{port}/health/ready", log)
        server = Server(f"http://127.0.0.1:{port}/v1/embeddings", process.pid, triton.grpc)
        _wait_for_workers(server, models[0], workers)
        yield server


def _wait_for_workers(server: Server, model: str, workers: int) -> None:
    """Wait until every worker has its engine slots; the metrics are sums over the workers."""
    series, first, slots = f'gateway_slots{{model="{model}"}}', 0.0, 0.0
    deadline = time.monotonic() + _ALL_WORKERS_TIMEOUT_S
    while time.monotonic() < deadline:
        # Not readable while a worker that starts is creating its part of them (prometheus-client 0.26).
        with suppress(urllib.error.HTTPError):
            slots = server.metrics()[series]
        first = first or slots
        if first and slots >= workers * first:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{workers} workers did not start; the gateway has {slots:g} slots")


@contextmanager
def run_infinity(command: Sequence[str], folder: Path, device: str, log: Path) -> Iterator[Server]:
    """Run infinity-emb with torch on that device, FP16 on a GPU, as many rows a call as the plans take.

    Args:
        command: infinity_emb.
        folder: the model's; its name is the served one.
        device: cuda or cpu.
        log: takes its output.
    """
    port = free_port()
    arguments = [
        "v2", "--model-id", str(folder), "--served-model-name", folder.name, "--engine", "torch", "--device", device,
        "--dtype", "float16" if device == "cuda" else "float32", "--batch-size", "64", "--no-bettertransformer",
        "--no-model-warmup", "--log-level", "warning", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    # transformers 4 imports flax and TensorFlow where it finds them, which takes long.
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "USE_FLAX": "0", "USE_TF": "0"}
    environment.pop("PYTHONPATH", None)  # the gateway's libraries; infinity has versions of its own
    with _run([*command, *arguments], environment, log) as process:
        wait_ready(process, f"http://127.0.0.1:{port}/health", log)
        yield Server(f"http://127.0.0.1:{port}/embeddings", process.pid)


@contextmanager
def _run(command: list[str], environment: dict[str, str], log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("ab") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def processor_s(pid: int) -> float:
    """Return the processor seconds that a process and its descendants have used; those that have ended count not."""
    return sum(_ticks(one) for one in [pid, *_processes(pid)]) / _TICKS_S


def _processes(pid: int) -> list[int]:
    """Return the descendants of a process."""
    parents = {int(path.parent.name): int(_stat(path)[1]) for path in Path("/proc").glob("[0-9]*/stat")}
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def _ticks(pid: int) -> int:
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return int(fields[11]) + int(fields[12])


def _stat(path: Path) -> list[str]:
    """Return the fields from the state on; zeros for a process that has gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20
