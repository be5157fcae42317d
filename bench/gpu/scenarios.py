"""What is measured, one function each. Called by measurement."""

import statistics
from dataclasses import asdict, dataclass

from bench.gpu.bare_clients import BareClients
from bench.gpu.load import Measured, measure
from bench.gpu.results import Results, Row
from bench.gpu.servers import Triton
from bench.gpu.workload import Workload
from bench.processes import Server

CONNECTIONS = 64
"""For requests of many texts: enough that eight workers always have the next batch."""
FEW_AND_MANY = (32, 128)
"""Connections for requests of one text."""
BARE_SHAPES = ((2, 2), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2))
"""Processes of the bare client, and calls at once of each."""
_WARM_UP_S = 1
_PEER_WARM_UP_S = 5.0
"""infinity-emb's first batches of each shape take longer: with single texts it answered none within a second."""


@dataclass(frozen=True)
class BestClients:
    """The bare clients of one model, in the shape that gave most."""

    clients: BareClients
    processes: int
    concurrent: int

    def texts_s(self, seconds: float) -> float:
        """Return what they get in that time."""
        return self.clients.texts_s(self.processes, self.concurrent, seconds)


def find_best_clients(workload: Workload, model: str, clients: BareClients, results: Results) -> BestClients:
    """Try the shapes for a second each."""
    tried = {}
    clients.texts_s(2, 2, 1)
    for shape in BARE_SHAPES:
        workload.check_time()
        tried[shape] = clients.texts_s(*shape, seconds=1)
        results.add(
            "Bare clients", {"model": model, "processes": shape[0], "calls each": shape[1], "texts/s": tried[shape]}
        )
    return BestClients(clients, *max(tried, key=lambda shape: tried[shape]))


@dataclass(frozen=True)
class Subject:
    """A served model under measurement.

    Attributes:
        way: how its output travels.
        workers: of the gateway.
        slots: its GATEWAY_SLOTS_PER_INSTANCE.
        model: its name.
        server: the gateway.
        triton: behind it.
    """

    way: str
    workers: int
    slots: int
    model: str
    server: Server
    triton: Triton

    def row(self) -> Row:
        """Return the columns that name it."""
        return {"workers": self.workers, "slots": self.slots, "model": self.model, "output over": self.way}

    def measure(
        self, workload: Workload, requests: list[dict[str, object]], connections: int, seconds: int
    ) -> Measured:
        """Put load on it, unless the time is over."""
        workload.check_time()
        return measure(self.server, requests, connections, seconds, self.triton)


def efficiency(workload: Workload, subject: Subject, bare: BestClients, results: Results) -> None:
    """Texts a second through HTTP against those of the bare clients on the same Triton, alternating."""
    requests = workload.long_requests(subject.model)
    subject.measure(workload, requests, CONNECTIONS, _WARM_UP_S)
    loads, bare_texts_s = [], []
    for _ in range(workload.pairs):
        loads.append(subject.measure(workload, requests, CONNECTIONS, workload.seconds))
        bare_texts_s.append(bare.texts_s(workload.seconds))
    ratios = [load.requests_s * workload.texts / rate for load, rate in zip(loads, bare_texts_s, strict=True)]
    median = _median(loads)
    row = subject.row() | {
        "texts/s": median.requests_s * workload.texts,
        "bare texts/s": statistics.median(bare_texts_s),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }
    results.add("Efficiency", row | _costs(median))


def alone(workload: Workload, subject: Subject, results: Results) -> None:
    """The same load, and single texts, on an engine that answers at once."""
    long = subject.measure(workload, workload.long_requests(subject.model), CONNECTIONS, workload.seconds)
    row = subject.row() | {"load": f"{workload.texts} texts x {CONNECTIONS}", "requests/s": long.requests_s}
    results.add("Engine that answers at once", row | {"texts/s": long.requests_s * workload.texts} | _costs(long))
    short = subject.measure(workload, workload.short_requests(subject.model), FEW_AND_MANY[-1], workload.seconds)
    row = subject.row() | {"load": f"1 text x {FEW_AND_MANY[-1]}", "requests/s": short.requests_s}
    results.add("Engine that answers at once", row | {"texts/s": short.requests_s} | _costs(short))


def many_texts(workload: Workload, subject: Subject, results: Results) -> None:
    """The load of `efficiency` without a bare client beside it: to compare ways of the output."""
    requests = workload.long_requests(subject.model)
    subject.measure(workload, requests, CONNECTIONS, _WARM_UP_S)
    load = subject.measure(workload, requests, CONNECTIONS, workload.seconds)
    results.add("Other ways", subject.row() | {"texts/s": load.requests_s * workload.texts} | _costs(load))


def single_texts(workload: Workload, subject: Subject, results: Results) -> None:
    """Requests of one short text."""
    requests = workload.short_requests(subject.model)
    for connections in FEW_AND_MANY:
        load = subject.measure(workload, requests, connections, workload.seconds)
        row = subject.row() | {"connections": connections, "requests/s": load.requests_s}
        results.add("One text of 5 to 40 words", row | _costs(load))


def peer(workload: Workload, subject: Subject, infinity: Server, infinity_model: str, results: Results) -> None:
    """The gateway against infinity-emb, alternating."""
    for what, make, connections in (
        (f"{workload.texts} texts x {CONNECTIONS}", workload.long_requests, CONNECTIONS),
        *((f"1 text x {number}", workload.short_requests, number) for number in FEW_AND_MANY),
    ):
        ours, theirs = [], []
        requests = make(infinity_model)
        measure(infinity, requests, connections, _PEER_WARM_UP_S)
        for _ in range(workload.pairs):
            ours.append(subject.measure(workload, make(subject.model), connections, workload.seconds))
            theirs.append(measure(infinity, requests, connections, workload.seconds))
        ratios = [our.requests_s / their.requests_s for our, their in zip(ours, theirs, strict=True)]
        our, their = _median(ours), _median(theirs)
        row = subject.row() | {
            "load": what,
            "requests/s": our.requests_s,
            "infinity": their.requests_s,
            "ratio": statistics.median(ratios),
            "p50 ms": our.p50_ms,
            "its p50": their.p50_ms,
            "p99 ms": our.p99_ms,
            "its p99": their.p99_ms,
        }
        results.add("Against infinity-emb, FP16 on the same GPU", row)


def _median(loads: list[Measured]) -> Measured:
    """Return the median of each figure."""
    columns = zip(*(asdict(load).values() for load in loads), strict=True)
    return Measured(*map(statistics.median, columns))


def _costs(load: Measured) -> Row:
    return {
        "p50 ms": load.p50_ms,
        "p99 ms": load.p99_ms,
        "rows a call": load.rows,
        "gateway cores": load.server_cores,
        "wrk cores": load.load_cores,
    }
