"""Drives load with wrk, and reads its figures."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


@dataclass(frozen=True)
class Load:
    """What wrk measured.

    Attributes:
        requests: requests answered.
        requests_s: requests a second.
        p50_ms: median latency.
        p99_ms: 99th percentile of latency.
    """

    requests: int
    requests_s: float
    p50_ms: float
    p99_ms: float


def post(url: str, bodies: Sequence[dict[str, object]], connections: int, seconds: float) -> Load:
    """Post the bodies in turn, over that many connections, for that long.

    Raises:
        SystemExit: wrk is not installed.
        RuntimeError: an answer was not 200.
    """
    if not shutil.which("wrk"):
        sys.exit("wrk is not installed (Debian: apt install wrk)")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_script([json.dumps(body) for body in bodies]))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "60s", "--latency"]
        output = subprocess.run([*command, "-s", script.name, url], capture_output=True, text=True, check=True).stdout
    return _read(output)


def _script(bodies: list[str]) -> str:
    literals = ",\n".join(_quote(body) for body in bodies)
    return f"""
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local bodies = {{{literals}}}
local number = 0
request = function()
  number = number % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[number])
end
"""


def _quote(text: str) -> str:
    return "[==[" + text + "]==]"


def _read(output: str) -> Load:
    if "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(output)
    percentiles = {
        percent: float(value) * _UNITS_MS[unit]
        for percent, value, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s|m)\b", output)
    }
    requests = re.search(r"(\d+) requests in", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    if not requests or not rate:
        raise RuntimeError(output)
    return Load(int(requests[1]), float(rate[1]), percentiles["50"], percentiles["99"])
