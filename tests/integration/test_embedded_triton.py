"""The wheel's Triton on the demo model: it serves what config.pbtxt says, and leaves nothing behind however it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray

from gateway import contract
from gateway.embedded import EmbeddedTriton
from gateway.embedded.preflight import SHARED_MEMORY
from gateway.embedded.workspace import NAME_PREFIX, remove_leftovers
from gateway.errors import StartupError
from tests.gateway_process import ROOT
from tests.integration.triton_figures import DEMO_MODEL, TritonFigures

Ids = NDArray[np.int32]

# A gateway's main thread without the gateway.
PARENT = """
import sys, time
from pathlib import Path
from gateway.embedded import EmbeddedTriton

with EmbeddedTriton(Path(sys.argv[1]), grpc_port=0, http_port=0, metrics_port=0) as triton:
    triton.wait_ready(60)
    try:
        print(triton.pid, flush=True)
        time.sleep(120)
    except KeyboardInterrupt:
        time.sleep(1)
        print(triton.is_alive(), flush=True)
"""


class Parent:
    """A process that runs an embedded Triton, and leads a process group, like a gateway in a terminal.

    Attributes:
        process: the parent.
        triton_pid: tritonserver, which leads another group.
    """

    def __init__(self, process: subprocess.Popen[str], triton_pid: int) -> None:
        self.process = process
        self.triton_pid = triton_pid

    def triton_processes(self) -> set[int]:
        """Return tritonserver and its model instances, as far as they run."""
        return processes_of_group(self.triton_pid)

    def shared_memory(self) -> list[Path]:
        return list(SHARED_MEMORY.glob(f"{NAME_PREFIX}{self.process.pid}-*"))


def processes_of_group(group: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state != "Z" and int(its_group) == group:
            found.add(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextmanager
def run_parent(repository: Path) -> Iterator[Parent]:
    command = [sys.executable, "-c", PARENT, str(repository)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout
        parent = Parent(process, int(process.stdout.readline()))
        try:
            yield parent
        finally:
            for pid in parent.triton_processes() | processes_of_group(process.pid):
                os.kill(pid, signal.SIGKILL)


def infer(url: str, input_ids: Ids, attention_mask: Ids) -> NDArray[np.float32]:
    inputs = []
    for name, array in ((contract.INPUT_IDS, input_ids), (contract.ATTENTION_MASK, attention_mask)):
        inputs.append(triton_grpc.InferInput(name, array.shape, "INT32"))
        inputs[-1].set_data_from_numpy(array)
    with triton_grpc.InferenceServerClient(url) as client:
        return np.asarray(client.infer(DEMO_MODEL, inputs).as_numpy(contract.LAST_HIDDEN_STATE))


def ids_of(rows: int, length: int) -> Ids:
    return np.random.default_rng(rows).integers(1000, 20_000, (rows, length), np.int32)


def test_metadata(triton_url: str) -> None:
    with triton_grpc.InferenceServerClient(triton_url) as client:
        metadata = client.get_model_metadata(DEMO_MODEL, as_json=True)
    assert metadata["inputs"] == [
        {"name": name, "datatype": "INT32", "shape": ["-1", "-1"]}
        for name in (contract.INPUT_IDS, contract.ATTENTION_MASK)
    ]
    assert metadata["outputs"] == [
        {"name": contract.LAST_HIDDEN_STATE, "datatype": "FP32", "shape": ["-1", "-1", "384"]}
    ]


def test_the_parameters_of_the_config_reach_a_client(triton_url: str) -> None:
    with triton_grpc.InferenceServerClient(triton_url) as client:
        parameters = client.get_model_config(DEMO_MODEL).config.parameters
    assert parameters[contract.PARAMETER_FORMAT].string_value == str(contract.FORMAT_VERSION)
    assert parameters[contract.PARAMETER_POOLING].string_value == "mean"
    assert parameters[contract.PARAMETER_LENGTH_BUCKETS].string_value.split(",")[-1] == "256"


def test_equal_to_onnx_runtime(triton_url: str, model_repository: Path) -> None:
    input_ids, attention_mask = ids_of(4, 32), np.ones((4, 32), np.int32)
    attention_mask[1, 20:] = input_ids[1, 20:] = 0
    session = onnxruntime.InferenceSession(model_repository / DEMO_MODEL / "1" / "model.onnx")
    feeds = {contract.INPUT_IDS: input_ids, contract.ATTENTION_MASK: attention_mask}
    (expected,) = session.run([contract.LAST_HIDDEN_STATE], feeds)
    np.testing.assert_allclose(infer(triton_url, input_ids, attention_mask), expected, atol=1e-5)


def test_calls_of_one_shape_are_merged_and_split_again(triton_url: str, triton_figures: TritonFigures) -> None:
    rows = ids_of(16, 16)
    mask = np.ones((1, 16), np.int32)
    before = triton_figures()
    with ThreadPoolExecutor(18) as pool:
        for _ in range(2):  # keep the instances busy, so that the others queue up
            pool.submit(infer, triton_url, ids_of(8, 128), np.ones((8, 128), np.int32))
        time.sleep(0.2)
        alone = list(pool.map(lambda row: infer(triton_url, row[None], mask), rows))
    after = triton_figures()
    assert after.inferences - before.inferences == 32
    assert after.executions - before.executions <= 6
    together = infer(triton_url, rows, np.repeat(mask, 16, axis=0))
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-5)


def test_a_bad_request_fails_alone(triton_url: str) -> None:
    mask = np.ones((1, 16), np.int32)
    good, bad = ids_of(1, 16), np.full((1, 16), 10**6, np.int32)
    with ThreadPoolExecutor(10) as pool:
        pool.submit(infer, triton_url, ids_of(8, 128), np.ones((8, 128), np.int32))
        pool.submit(infer, triton_url, ids_of(8, 128), np.ones((8, 128), np.int32))
        time.sleep(0.2)
        answers = [pool.submit(infer, triton_url, ids, mask) for ids in (good, bad, good, good)]
    failures = [answer.exception() for answer in answers]
    assert [failure is None for failure in failures] == [True, False, True, True]
    assert "out of data bounds" in str(failures[1])


def test_metrics(embedded_triton: EmbeddedTriton) -> None:
    assert f'nv_inference_count{{model="{DEMO_MODEL}"' in httpx.get(embedded_triton.metrics_url).text


def test_it_listens_on_one_address_only(embedded_triton: EmbeddedTriton) -> None:
    for url in (f"http://{embedded_triton.grpc_url}", embedded_triton.http_url, embedded_triton.metrics_url):
        port = httpx.URL(url).port or 80
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def test_stop_leaves_nothing_and_the_ports_are_free_at_once(model_repository: Path) -> None:
    triton = EmbeddedTriton(model_repository, grpc_port=0, http_port=0, metrics_port=0)
    before = set(SHARED_MEMORY.iterdir())
    urls = set()
    for _ in range(2):
        with triton:
            triton.wait_ready(60)
            infer(triton.grpc_url, ids_of(1, 16), np.ones((1, 16), np.int32))
            urls.add((triton.grpc_url, triton.http_url, triton.metrics_url))
            assert len(processes_of_group(triton.pid)) >= 2
            assert set(SHARED_MEMORY.iterdir()) > before
        assert not triton.is_alive()
        assert not processes_of_group(triton.pid)
        assert set(SHARED_MEMORY.iterdir()) == before
    assert len(urls) == 1


def test_kill_of_the_parent_ends_triton(model_repository: Path) -> None:
    with run_parent(model_repository) as parent:
        assert len(parent.triton_processes()) >= 2
        parent.process.kill()
        wait_until(lambda: not parent.triton_processes())
        assert not [path for path in parent.shared_memory() if path.is_file()]  # Triton ended in order
        remove_leftovers()
        assert not parent.shared_memory()


def test_kill_of_triton_ends_its_instances(model_repository: Path) -> None:
    with run_parent(model_repository) as parent:
        os.kill(parent.triton_pid, signal.SIGKILL)
        wait_until(lambda: not parent.triton_processes(), 5)
        parent.process.send_signal(signal.SIGINT)
        assert parent.process.communicate(timeout=20)[0] == "False\n"
        assert not parent.shared_memory()


def test_kill_of_both_ends_the_instances(model_repository: Path) -> None:
    with run_parent(model_repository) as parent:
        parent.process.kill()
        os.kill(parent.triton_pid, signal.SIGKILL)
        wait_until(lambda: not parent.triton_processes())
        remove_leftovers()
        assert not parent.shared_memory()


def test_ctrl_c_leaves_triton_to_the_parent(model_repository: Path) -> None:
    with run_parent(model_repository) as parent:
        os.killpg(parent.process.pid, signal.SIGINT)
        assert parent.process.communicate(timeout=30)[0] == "True\n"
        assert parent.process.returncode == 0
        assert not parent.triton_processes()
        assert not parent.shared_memory()


def test_a_model_that_does_not_load_is_the_reason(tmp_path: Path, model_repository: Path) -> None:
    version = tmp_path / DEMO_MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"no graph")
    (version / "model.py").symlink_to(model_repository / DEMO_MODEL / "1" / "model.py")
    (version.parent / "config.pbtxt").symlink_to(model_repository / DEMO_MODEL / "config.pbtxt")
    with (
        EmbeddedTriton(tmp_path, grpc_port=0, http_port=0, metrics_port=0) as triton,
        pytest.raises(StartupError, match=rf"failed to load '{DEMO_MODEL}'.*cannot load model.onnx") as caught,
    ):
        triton.wait_ready(60)
    assert "\n" not in str(caught.value)
