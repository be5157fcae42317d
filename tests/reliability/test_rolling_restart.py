"""Two gateways behind a real nginx are restarted one after the other, under constant load: nobody is refused."""

import asyncio
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.gateway_process import ROOT, GatewayProcess, free_port, run_gateway
from tests.reliability.callers import ask_async, is_ready, until
from tests.reliability.load import Load
from tests.reliability.nginx import CONFIG, run_nginx
from tests.stub_gateway import run_stub_gateway

RATE = 50
DRAIN_S = 1.0


async def stop(gateway: GatewayProcess) -> None:
    gateway.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.process.wait, 20) == 0


@pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")
async def test_rolling_restart(model_repository: Path, tmp_path: Path) -> None:
    with run_stub_gateway(model_repository, tmp_path, drain_s=DRAIN_S) as first:
        first.triton.delay_s = 0.1  # always something under way
        second_port, first_port = free_port(), int(first.gateway.url.rpartition(":")[2])
        settings: dict[str, object] = {
            "model_repository": tmp_path / "triton_repo",
            "triton_url": first.triton.url,
            "drain_s": DRAIN_S,
        }
        with (
            run_gateway(tmp_path / "second.log", port=second_port, **settings) as second,
            run_nginx(tmp_path, [first_port, second_port]) as url,
        ):
            load = Load(RATE, partial(ask_async, url=url, input_="a tree"))
            running = asyncio.create_task(load.run())
            await asyncio.sleep(1)
            await stop(first.gateway)
            with run_gateway(tmp_path / "third.log", port=first_port, **settings) as third:
                await until(lambda: asyncio.to_thread(is_ready, third.url), 10)
                await asyncio.sleep(1.5)  # nginx looks at it again
                await stop(second)
                await asyncio.sleep(1)
                load.stop()
                await running
    assert {answer.status for answer in load.answers} == {200}
    assert len(load.answers) > 3 * RATE


def test_the_documented_lines_are_the_tested_ones() -> None:
    shown = (ROOT / "docs" / "reliability.md").read_text().split("```nginx")[1].split("```")[0]
    tested = CONFIG.replace("{{", "{").replace("}}", "}")
    for line in map(str.strip, shown.splitlines()):
        assert line in tested or line.startswith("server 127.0.0.1:808")
