"""What can be tried of the GPU bench without a GPU: its engine that answers at once, its bare clients, its texts."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.gpu.bare_clients import Calls, bare_clients
from bench.gpu.constant_models import SUFFIX, add_constant_model
from bench.gpu.models import one_token_words, read_spec
from bench.texts import text
from gateway.embedded import EmbeddedTriton
from tests.contract.caller import Caller
from tests.gateway_process import ROOT, run_gateway
from tests.integration.triton_figures import DEMO_MODEL

GOLDEN_PLAN = ROOT / "tests" / "engine_build" / "golden" / "tensorrt.pbtxt"
CONSTANT = f"{DEMO_MODEL}{SUFFIX}"


@pytest.fixture(scope="module")
def repository(model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The constant copy of the demo model, alone."""
    folder = tmp_path_factory.mktemp("constant")
    shutil.copytree(model_repository / DEMO_MODEL, folder / DEMO_MODEL)
    add_constant_model(folder, DEMO_MODEL)
    shutil.rmtree(folder / DEMO_MODEL)
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[EmbeddedTriton]:
    with EmbeddedTriton(repository, grpc_port=0, http_port=0, metrics_port=0) as triton:
        triton.wait_ready(60)
        yield triton


def test_the_gateway_accepts_the_engine_that_answers_at_once(
    repository: Path, triton: EmbeddedTriton, tmp_path: Path
) -> None:
    settings = {"model_repository": repository, "triton_url": triton.grpc_url}
    with run_gateway(tmp_path / "log", **settings) as gateway, Caller(gateway.url) as caller:
        answer = caller.ask(["a", "two words"], model=CONSTANT)
    hidden_size = read_spec(repository, CONSTANT).hidden_size
    vectors = [one["embedding"] for one in answer.json()["data"]]
    assert vectors == [pytest.approx([hidden_size**-0.5] * hidden_size)] * 2


@pytest.mark.parametrize("shared_memory", [False, True], ids=["grpc", "shared memory"])
def test_bare_clients_call(repository: Path, triton: EmbeddedTriton, shared_memory: bool) -> None:
    spec = read_spec(repository, CONSTANT)
    calls = Calls(triton.grpc_url, CONSTANT, spec.output, spec.hidden_size, True, spec.vocab_size, 3, 7, shared_memory)
    with bare_clients(calls, 2) as clients:
        assert clients.texts_s(processes=2, concurrent=2, seconds=0.2) > 0
        assert clients.texts_s(processes=1, concurrent=1, seconds=0.2) > 0


def test_bare_clients_tell_of_failures(repository: Path, triton: EmbeddedTriton) -> None:
    calls = Calls(triton.grpc_url, "no-such-model", "output", 1, True, 10, 1, 1, False)
    with bare_clients(calls, 1) as clients, pytest.raises(RuntimeError, match="no-such-model"):
        clients.texts_s(processes=1, concurrent=1, seconds=0.2)


def test_texts_have_the_length_that_was_asked_for(repository: Path) -> None:
    words = one_token_words(repository, CONSTANT)
    tokenizer = Tokenizer.from_file(str(repository / CONSTANT / "tokenizer.json"))
    tokenizer.no_padding()
    lengths = range(3, 129)
    texts = [text(length, random.Random(length), words) for length in lengths]
    assert [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)] == list(lengths)


def test_a_plans_directory_gets_a_constant_copy(tmp_path: Path) -> None:
    source = tmp_path / "m3e-base"
    source.mkdir()
    shutil.copyfile(GOLDEN_PLAN, source / "config.pbtxt")
    (source / "tokenizer.json").write_text("{}")
    manifest = {"engine": {"gpu": "some"}, "self_check": {"texts": ["a", "b"], "embeddings": [[1.0] + [0.0] * 3] * 2}}
    (source / "manifest.json").write_text(json.dumps(manifest))
    add_constant_model(tmp_path, "m3e-base")
    copy = tmp_path / f"m3e-base{SUFFIX}"
    assert read_spec(tmp_path, copy.name).name == copy.name
    assert "tensorrt" not in (copy / "config.pbtxt").read_text()
    written = json.loads((copy / "manifest.json").read_text())
    assert written == {"self_check": {"texts": ["a", "b"], "embeddings": [[0.5] * 4] * 2}}
