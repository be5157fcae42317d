"""All measurements over one Triton, each with the servers that it needs, the most telling first. Called by __main__."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.gpu import scenarios
from bench.gpu.bare_clients import Calls, bare_clients
from bench.gpu.constant_models import SUFFIX
from bench.gpu.models import read_spec
from bench.gpu.results import Results
from bench.gpu.scenarios import BestClients, Subject
from bench.gpu.servers import Triton, run_gateway, run_infinity
from bench.gpu.workload import Workload
from gateway.types import OutputKind

GRPC, SHARED_MEMORY = "gRPC", "shared memory"
"""How outputs travel."""
_MOST_BARE_CLIENTS = 8


@dataclass(frozen=True)
class Setup:
    """How the gateway runs: its processes, and the engine calls that each has under way for an engine instance."""

    workers: int
    slots: int = 1

    def __str__(self) -> str:
        return f"{self.workers} workers x {self.slots} slots"


_SINGLE_TEXT_SETUPS = (Setup(1), Setup(2), Setup(4))


@dataclass(frozen=True)
class Measurement:
    """What is measured on what.

    Attributes:
        workload: what is sent, for how long.
        triton: serves the models.
        repository: their directories, with constant copies.
        pooled: the model whose output is [B,H].
        token: the model whose output is [B,S,H].
        setups: of the gateway, the most telling first.
        folder: the model as infinity reads it.
        infinity: command infinity_emb.
        device: infinity's.
        logs: folder of the servers' logs.
        results: takes the figures.
    """

    workload: Workload
    triton: Triton
    repository: Path
    pooled: str
    token: str
    setups: list[Setup]
    folder: Path
    infinity: str
    device: str
    logs: Path
    results: Results

    def run(self) -> None:
        """Measure every setup; what needs only one of them takes the first."""
        attempt = self.results.attempt
        with ExitStack() as stack:
            pooled, token = (self._best_clients(stack, model) for model in (self.pooled, self.token))
            for setup in self.setups:
                attempt(f"{setup}, pooled", partial(self._measure, setup, self.pooled, GRPC, pooled))
                attempt(f"{setup}, token", partial(self._measure, setup, self.token, SHARED_MEMORY, token))
                if setup == self.setups[0]:
                    attempt("infinity", partial(self._compare_with_peer, setup))
                    attempt("token over gRPC", partial(self._measure_grpc, setup))

    def _best_clients(self, stack: ExitStack, model: str) -> BestClients:
        spec = read_spec(self.repository, model)
        per_token = spec.output_kind is OutputKind.TOKEN_EMBEDDINGS
        calls = Calls(
            grpc=self.triton.grpc,
            model=model,
            output=spec.output,
            hidden_size=spec.hidden_size,
            per_token=per_token,
            vocabulary=spec.vocab_size,
            rows=self.workload.texts,
            length=self.workload.tokens,
            shared_memory=per_token,
        )
        clients = stack.enter_context(bare_clients(calls, _MOST_BARE_CLIENTS))
        return scenarios.find_best_clients(self.workload, model, clients, self.results)

    def _measure(self, setup: Setup, model: str, way: str, bare: BestClients) -> None:
        with self._gateway(setup, model, way) as subject:
            scenarios.efficiency(self.workload, subject, bare, self.results)
            if setup in _SINGLE_TEXT_SETUPS:
                scenarios.single_texts(self.workload, subject, self.results)
            if setup.slots == 1 and (way == GRPC or setup == self.setups[0]):
                scenarios.alone(self.workload, replace(subject, model=f"{model}{SUFFIX}"), self.results)

    def _measure_grpc(self, setup: Setup) -> None:
        with self._gateway(setup, self.token, GRPC) as subject:
            scenarios.many_texts(self.workload, subject, self.results)

    def _compare_with_peer(self, setup: Setup) -> None:
        with (
            run_infinity(
                shlex.split(self.infinity), self.folder, self.device, self.logs / "bench-infinity.log"
            ) as infinity,
            self._gateway(setup, self.pooled, GRPC) as subject,
        ):
            scenarios.peer(self.workload, subject, infinity, self.folder.name, self.results)

    @contextmanager
    def _gateway(self, setup: Setup, model: str, way: str) -> Iterator[Subject]:
        """Run a gateway on the model and its constant copy."""
        self.workload.check_time()
        models = [model, f"{model}{SUFFIX}"]
        settings = {"shared_memory": "on" if way == SHARED_MEMORY else "off", "slots_per_instance": setup.slots}
        log = self.logs / f"bench-gateway-{model}.log"
        with run_gateway(self.triton, self.repository, models, setup.workers, log, **settings) as server:
            yield Subject(way, setup.workers, setup.slots, model, server, self.triton)
