"""The Python-backend model of CPU machines, with a small graph and a stand-in for Triton's module."""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine_build.assembly import TEMPLATE

Array = NDArray[Any]
HIDDEN = 4
VOCABULARY = 50


class TritonModelException(Exception):
    pass


class TritonError:
    def __init__(self, message: str) -> None:
        self.message = message


class Tensor:
    def __init__(self, name: str, array: Array) -> None:
        self.name = name
        self.array = array

    def as_numpy(self) -> Array:
        return self.array


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.outputs = {tensor.name: tensor.array for tensor in output_tensors or []}
        self.error = error


class Request(dict[str, Array]):
    """Input arrays by name."""


def get_input_tensor_by_name(request: Request, name: str) -> Tensor:
    return Tensor(name, request[name])


def triton_string_to_numpy(name: str) -> Any:
    return {"TYPE_FP32": np.float32, "TYPE_FP16": np.float16}[name]


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The template's module, as Triton would import it."""
    backend: Any = ModuleType("triton_python_backend_utils")
    for thing in (TritonModelException, TritonError, Tensor, InferenceResponse):
        setattr(backend, thing.__name__, thing)
    backend.get_input_tensor_by_name = get_input_tensor_by_name
    backend.triton_string_to_numpy = triton_string_to_numpy
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    return load(TEMPLATE)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("model", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = np.random.default_rng(0).standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)


def write_graph(path: Path, id_type: int = TensorProto.INT32) -> None:
    """Write a graph of two outputs: each token's row of TABLE, zero under padding, and the sum of the rows."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["embedded", "mask3"], ["last_hidden_state"]),
        helper.make_node("ReduceSum", ["last_hidden_state", "first"], ["sentence_embedding"], keepdims=0),
    ]
    constants = [
        onnx.numpy_helper.from_array(TABLE, "table"),
        onnx.numpy_helper.from_array(np.array([2]), "last"),
        onnx.numpy_helper.from_array(np.array([1]), "first"),
    ]
    inputs = [helper.make_tensor_value_info(name, id_type, ["B", "S"]) for name in ("input_ids", "attention_mask")]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["B", "S", HIDDEN]),
        helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["B", HIDDEN]),
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def config(
    *,
    inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
    outputs: dict[str, str] | None = None,
    instances: int = 1,
) -> dict[str, str]:
    """Return what Triton hands to `initialize`."""
    outputs = outputs or {"last_hidden_state": "TYPE_FP32"}
    model_config = {
        "input": [{"name": name, "data_type": "TYPE_INT32"} for name in inputs],
        "output": [{"name": name, "data_type": data_type} for name, data_type in outputs.items()],
        "instance_group": [{"kind": "KIND_CPU", "count": instances}],
    }
    return {"model_config": json.dumps(model_config)}


Make = Callable[..., Any]


@pytest.fixture
def make(template: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make and initialize a model beside a graph."""
    monkeypatch.setattr(template, "__file__", str(tmp_path / "model.py"))

    def make(id_type: int = TensorProto.INT32, **options: Any) -> Any:
        write_graph(tmp_path / "model.onnx", id_type)
        model = template.TritonPythonModel()
        model.initialize(config(**options))
        return model

    return make


def request(*rows: list[int]) -> Request:
    ids = np.array(rows, np.int32)
    return Request(input_ids=ids, attention_mask=(ids != 0).astype(np.int32))


def expected(one: Request) -> Array:
    return np.asarray(TABLE[one["input_ids"]] * one["attention_mask"][:, :, None])


class TestExecute:
    def test_requests_are_joined_and_split_again(self, make: Make) -> None:
        model = make()
        runs: list[tuple[int, ...]] = []
        session = model._session
        model._session = type("Counted", (), {"run": lambda _, names, feeds: record(names, feeds)})()

        def record(names: list[str], feeds: dict[str, Array]) -> Any:
            runs.append(feeds["input_ids"].shape)
            return session.run(names, feeds)

        requests = [request([1, 2, 3]), request([4, 5, 0], [6, 0, 0]), request([7, 8, 9])]
        responses = model.execute(requests)
        assert runs == [(4, 3)]
        for one, response in zip(requests, responses, strict=True):
            assert response.error is None
            assert response.outputs["last_hidden_state"].dtype == np.float32
            np.testing.assert_array_equal(response.outputs["last_hidden_state"], expected(one))

    def test_only_the_request_at_fault_fails(self, make: Make) -> None:
        requests = [request([1, 2]), request([3, VOCABULARY]), request([4, 5])]
        responses = make().execute(requests)
        assert [response.error is None for response in responses] == [True, False, True]
        assert "out of data bounds" in responses[1].error.message
        np.testing.assert_array_equal(responses[2].outputs["last_hidden_state"], expected(requests[2]))

    def test_requests_of_several_shapes(self, make: Make) -> None:
        requests = [request([1, 2]), request([3, 4, 5])]
        responses = make().execute(requests)
        for one, response in zip(requests, responses, strict=True):
            np.testing.assert_array_equal(response.outputs["last_hidden_state"], expected(one))

    def test_outputs_are_those_of_the_config(self, make: Make) -> None:
        one = request([1, 2], [3, 0])
        (response,) = make(outputs={"sentence_embedding": "TYPE_FP16"}).execute([one])
        assert list(response.outputs) == ["sentence_embedding"]
        assert response.outputs["sentence_embedding"].dtype == np.float16
        np.testing.assert_allclose(response.outputs["sentence_embedding"], expected(one).sum(1), atol=2e-3)

    def test_two_outputs(self, make: Make) -> None:
        outputs = {"sentence_embedding": "TYPE_FP32", "last_hidden_state": "TYPE_FP32"}
        requests = [request([1, 2]), request([3, 4])]
        for one, response in zip(requests, make(outputs=outputs).execute(requests), strict=True):
            np.testing.assert_array_equal(response.outputs["last_hidden_state"], expected(one))
            np.testing.assert_allclose(response.outputs["sentence_embedding"], expected(one).sum(1), rtol=1e-6)

    def test_a_graph_with_int64_inputs(self, make: Make) -> None:
        one = request([1, 2])
        (response,) = make(TensorProto.INT64).execute([one])
        np.testing.assert_array_equal(response.outputs["last_hidden_state"], expected(one))


class TestInitialize:
    @pytest.mark.parametrize(
        "options",
        [
            pytest.param({"inputs": ("input_ids",)}, id="input not declared"),
            pytest.param({"inputs": ("input_ids", "attention_mask", "token_type_ids")}, id="input not in the graph"),
            pytest.param({"outputs": {"pooler_output": "TYPE_FP32"}}, id="output not in the graph"),
            pytest.param({"id_type": TensorProto.FLOAT}, id="ids are no integers"),
        ],
    )
    def test_tensors_differ(self, make: Make, options: dict[str, Any]) -> None:
        with pytest.raises(TritonModelException, match=r"(cannot load|config\.pbtxt names inputs)"):
            make(**options)

    def test_no_graph(self, template: ModuleType, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"none")
        with pytest.raises(TritonModelException, match=r"cannot load model\.onnx: "):
            template.open_session(tmp_path / "model.onnx", 1)

    def test_cpus_are_shared_by_the_instances(
        self, make: Make, template: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(template, "cpu_count", lambda: 5)
        assert [
            make(instances=instances)._session.get_session_options().intra_op_num_threads for instances in (1, 2, 8)
        ] == [5, 2, 1]

    def test_finalize(self, make: Make) -> None:
        model = make()
        model.finalize()
        assert not hasattr(model, "_session")


class TestCpuCount:
    @pytest.mark.parametrize(
        ("files", "count"),
        [
            pytest.param({}, 8, id="no control group"),
            pytest.param({"cpu.max": "max 100000\n"}, 8, id="no quota"),
            pytest.param({"cpu.max": "250000 100000\n"}, 2, id="two and a half"),
            pytest.param({"cpu.max": "50000 100000\n"}, 1, id="half"),
            pytest.param({"cpu.max": "1600000 100000\n"}, 8, id="more than there are"),
            pytest.param({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3, id="version 1"),
            pytest.param({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, id="1, no quota"),
        ],
    )
    def test_quota(
        self, template: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], count: int
    ) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(template, "CONTROL_GROUP", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        assert template.cpu_count() == count
