"""What the real Triton counts of itself."""

from collections.abc import Callable
from dataclasses import dataclass

import httpx

DEMO_MODEL = "all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Figures:
    """Rows inferred, and model executions that took."""

    inferences: int
    executions: int


TritonFigures = Callable[[], Figures]


def read_figures(http_url: str) -> Figures:
    statistics = httpx.get(f"{http_url}/v2/models/{DEMO_MODEL}/stats").json()["model_stats"][0]
    return Figures(int(statistics["inference_count"]), int(statistics["execution_count"]))
