"""One measurement through HTTP: wrk's figures, with what Triton executed and what processors it took."""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import wrk
from bench.gpu.servers import Triton, processor_s
from bench.processes import Server


@dataclass(frozen=True)
class Measured:
    """What one load gave.

    Attributes:
        requests_s: requests a second.
        p50_ms: median latency.
        p99_ms: 99th percentile of latency.
        rows: rows of an engine execution, mean; 0 where it was not asked for.
        server_cores: processors that the server kept busy, Triton's own not among them.
        load_cores: the same of wrk.
    """

    requests_s: float
    p50_ms: float
    p99_ms: float
    rows: float
    server_cores: float
    load_cores: float


def measure(
    server: Server,
    bodies: Sequence[dict[str, object]],
    connections: int,
    seconds: int,
    triton: Triton | None = None,
) -> Measured:
    """Post the bodies in turn; with a Triton, count the rows of the model that they name.

    Raises:
        RuntimeError: an answer was not 200, or there was none.
    """
    model = str(bodies[0]["model"])
    rows, executions = triton.executed(model) if triton else (0, 0)
    server_s, load_s, begun = processor_s(server.pid), _children_s(), time.perf_counter()
    load = wrk.post(server.embeddings_url, bodies, connections, seconds)
    if not load.requests:
        raise RuntimeError(f"{model}: no request was answered within {seconds} s")
    elapsed_s = time.perf_counter() - begun
    server_s, load_s = processor_s(server.pid) - server_s, _children_s() - load_s
    if triton:
        rows_after, executions_after = triton.executed(model)
        rows, executions = rows_after - rows, executions_after - executions
    return Measured(
        load.requests_s,
        load.p50_ms,
        load.p99_ms,
        rows / max(executions, 1),
        server_s / elapsed_s,
        load_s / elapsed_s,
    )


def _children_s() -> float:
    """Return the processor seconds of the children that have ended: wrk's, while all servers run."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
