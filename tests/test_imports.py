"""Holds who may import whom, by reading the code."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIPELINE = sorted((ROOT / "gateway").glob("*.py"))
HTTP = sorted((ROOT / "gateway" / "http").glob("*.py"))
EMBEDDED = sorted((ROOT / "gateway" / "embedded").glob("*.py"))
GATEWAY = PIPELINE + HTTP + EMBEDDED
ENGINE_BUILD = sorted((ROOT / "engine_build").rglob("*.py"))

# Each file may import from the gateway only what stands at its right.
BASE = {"contract", "types", "errors"}
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "contract": set(),
    "types": {"contract"},
    "errors": set(),
    "triton_url": BASE,
    "settings": BASE | {"triton_url", "logs"},
    "logs": set(),
    "metrics": BASE,
    "batching": BASE,
    "pooling": BASE,
    "token_ids": BASE,
    "tokenizer": BASE | {"token_ids"},
    "model_spec": BASE,
    "model_directory": BASE,
    "batch_queue": BASE | {"batching"},
    "backoff": set(),
    "engine_cost": set(),
    "drain_rate": set(),
    "virtual_time": set(),
    "call_limit": set(),
    "tracing": BASE,
    "scheduler": BASE
    | {
        "batching",
        "batch_queue",
        "engine_cost",
        "call_limit",
        "drain_rate",
        "virtual_time",
        "pooling",
        "metrics",
        "tracing",
    },
    "self_check": BASE | {"batching", "pooling"},
    "embedder": BASE | {"tokenizer", "scheduler", "pooling", "metrics", "self_check", "tracing"},
    "registry": BASE | {"embedder"},
    "watch": BASE | {"embedder", "metrics", "model_directory"},
    "http_protocol": {"joined_writes"},
    "joined_writes": set(),
    "replica": BASE | {"self_check"},
    "replicas": BASE | {"replica", "self_check", "metrics", "triton_url"},
    "memory_owner": set(),
    "output_slots": BASE | {"memory_owner"},
    "shared_memory": BASE | {"batching", "memory_owner", "output_slots"},
    "triton": BASE | {"model_spec", "output_slots", "shared_memory"},
    "engine_match": BASE,
}
# They put the parts together, and may know all of them.
ASSEMBLY = {"__main__", "serving", "server", "workers"}
# The HTTP files know the pipeline's face, not its insides.
HTTP_MAY_SEE = BASE | {"http", "registry", "metrics", "settings", "tracing"}
# Who may import a library; nobody else does.
LIBRARIES = {
    "grpc": {"triton"},
    "tritonclient": {"triton", "output_slots", "shared_memory", "engine_match"},
    "prometheus_client": {"metrics"},
    "opentelemetry": {"tracing"},
    "tokenizers": {"tokenizer", "token_ids"},
    "uvicorn": {"server", "http_protocol"},
}
HTTP_LIBRARIES = {"fastapi", "starlette"}
BUILD_ONLY = {"torch", "transformers", "sentence_transformers", "onnx", "onnxruntime", "safetensors"}


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_modules(path: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports(path) if name.startswith("gateway.")}
    return names - {"__version__"}


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", PIPELINE, ids=lambda path: path.stem)
def test_the_pipelines_own_imports_flow_one_way(path: Path) -> None:
    if path.stem not in ASSEMBLY:
        assert path.stem in ALLOWED, "say here what this file may import"
        assert own_modules(path) <= ALLOWED[path.stem]


@pytest.mark.parametrize("path", HTTP, ids=lambda path: path.stem)
def test_the_http_files_see_the_pipelines_face_only(path: Path) -> None:
    assert own_modules(path) <= HTTP_MAY_SEE


@pytest.mark.parametrize("path", EMBEDDED, ids=lambda path: path.stem)
def test_the_embedded_triton_knows_nothing_of_the_gateway(path: Path) -> None:
    assert own_modules(path) <= BASE | {"embedded", "backoff"}


@pytest.mark.parametrize("path", GATEWAY, ids=lambda path: path.stem)
def test_each_library_has_its_place(path: Path) -> None:
    for library in libraries(path):
        assert path.stem in LIBRARIES.get(library, {path.stem}), library
    assert path in HTTP or not libraries(path) & HTTP_LIBRARIES
    assert not libraries(path) & (BUILD_ONLY | {"engine_build", "pytriton"})


@pytest.mark.parametrize("path", GATEWAY, ids=lambda path: path.stem)
def test_only_settings_and_embedded_read_the_environment(path: Path) -> None:
    source = path.read_text().replace("os.environ[MULTIPROCESS_VARIABLE] =", "")  # workers write it
    if path.stem != "settings" and path not in EMBEDDED:
        assert "os.environ" not in source
        assert "getenv" not in source


@pytest.mark.parametrize("path", ENGINE_BUILD, ids=lambda path: path.stem)
def test_engine_build_knows_of_the_gateway_only_the_contract(path: Path) -> None:
    assert own_modules(path) <= {"contract"}


def test_the_builder_starts_without_torch() -> None:
    code = "import sys, engine_build.cli; sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_contract_needs_the_standard_library_only() -> None:
    assert libraries(ROOT / "gateway" / "contract.py") <= sys.stdlib_module_names
