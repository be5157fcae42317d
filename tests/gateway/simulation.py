"""A discrete simulation of callers, a BatchQueue and an engine, on a clock of its own: hours of load in a second."""

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from gateway.batch_queue import BatchQueue
from gateway.batching import most_rows
from gateway.call_limit import CallLimit
from gateway.engine_cost import EngineCost
from gateway.scheduler import LONGEST_CALL_S, patience_s
from gateway.virtual_time import VirtualTime, parts

LENGTH_BUCKETS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass
class Text:
    """One text on its way: when it came, when it was answered."""

    length: int
    arrival: float
    request: "Request"
    answered: float = 0.0


@dataclass(eq=False)
class Request:
    """What one caller sent at once; `waiting` of its texts wait."""

    parts: int
    waiting: int


@dataclass
class Simulation:
    """An engine of `slots` slots whose calls take call_s + token_s x padded tokens.

    Attributes:
        answered: all answered texts, in order.
        calls: rows, padded length and real tokens of each call.
    """

    call_s: float
    token_s: float
    slots: int = 2
    max_batch_size: int = 32
    max_delay_s: float = 0.005
    longest_call_s: float = LONGEST_CALL_S
    answered: list[Text] = field(default_factory=list)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        rows = [most_rows(length, self.max_batch_size, 16_384) for length in LENGTH_BUCKETS]
        self.queue = BatchQueue[Text](LENGTH_BUCKETS, rows, self.max_delay_s)
        self.cost = EngineCost()
        self.call_limit = CallLimit(self.longest_call_s)
        self._virtual_time = VirtualTime()
        self._requests: set[Request] = set()
        self._busy = 0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something at that time."""
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def submit(self, lengths: list[int]) -> list[Text]:
        """A request comes now."""
        request = Request(parts(len(lengths)), len(lengths))
        self._requests.add(request)
        texts = [Text(length, self.now, request) for length in lengths]
        for text, turn in zip(texts, self._virtual_time.turns(lengths), strict=True):
            self.queue.push(text, text.length, arrival=self.now, turn=turn)
        self._dispatch()
        return texts

    def run(self, on_answer: Callable[[Text], None] = lambda text: None) -> None:
        """Run until nothing is left to do."""
        self._on_answer = on_answer
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def _dispatch(self) -> None:
        while self._busy < self.slots:
            all_parts = sum(each.parts for each in self._requests)
            texts, padded_length = self.queue.pop_batch(
                self.now,
                idle=self._busy == 0,
                overhead_tokens=self.cost.overhead_tokens,
                most_tokens=math.inf if all_parts == len(self._requests) else self.call_limit.tokens,
                patience_s=patience_s(self.cost),
            )
            if not texts:
                due = self.queue.next_due()
                if due is not None:
                    self.at(max(due, self.now) + 1e-9, self._dispatch)
                return
            self._start(texts, padded_length)

    def _start(self, texts: list[Text], padded_length: int) -> None:
        self._busy += 1
        self._virtual_time.advance(sum(text.length for text in texts), sum(each.parts for each in self._requests))
        for text in texts:
            text.request.waiting -= 1
            if not text.request.waiting:
                self._requests.discard(text.request)
        self.calls.append((len(texts), padded_length, sum(text.length for text in texts)))
        duration_s = self.call_s + self.token_s * len(texts) * padded_length
        self.at(self.now + duration_s, lambda: self._end(texts, padded_length, duration_s))

    def _end(self, texts: list[Text], padded_length: int, duration_s: float) -> None:
        self._busy -= 1
        self.cost.observe(len(texts) * padded_length, duration_s)
        self.call_limit.observe(len(texts) * padded_length, duration_s, self._busy + 1)
        for text in texts:
            assert not text.answered
            text.answered = self.now
            self.answered.append(text)
            self._on_answer(text)
        self._dispatch()


def closed_loop(simulation: Simulation, callers: int, texts: int, think_s: float, seed: int = 0) -> None:
    """Run callers that each send one text of 3 to 200 tokens, and the next one when it was answered."""
    random_lengths = random.Random(seed)
    left: Iterator[int] = iter(range(texts - callers))
    ours: set[Request] = set()

    def send() -> None:
        ours.update(text.request for text in simulation.submit([random_lengths.randint(3, 200)]))

    def send_next(text: Text) -> None:
        if text.request in ours and next(left, None) is not None:
            simulation.at(simulation.now + random_lengths.uniform(0, 2 * think_s), send)

    for caller in range(callers):
        simulation.at(caller * 1e-4, send)
    simulation.run(send_next)
