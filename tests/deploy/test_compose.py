"""docker-compose.yml: a strict parser of compose files, the specification's schema, and what each service promises."""

import json
import re
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import pytest
import yaml
from compose_spec import PyCompose

from engine_build.arguments import make_parser as engine_build_parser
from gateway.settings import Settings
from tests.deploy.compose_file import (
    COMPOSE_FILE,
    ENV_EXAMPLE,
    MissingVariableError,
    default_variables,
    interpolate,
    read_compose,
    read_env,
)
from tests.deploy.dockerfile import read_instructions
from tests.gateway_process import ROOT

SCHEMA = Path(__file__).with_name("compose.schema.json")
"""The Compose Specification's own (Apache-2.0)."""
SET_BY_COMPOSE = {
    "host", "port", "triton_url", "model_repository", "api_keys_file",
    "api_keys",  # keys come from a file
    "embedded_triton", "embedded_grpc_port", "embedded_http_port", "embedded_metrics_port",
}  # fmt: skip
TRACING = {
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG",
}  # fmt: skip
BUILDERS = {"engine-build": "gpu", "engine-build-cpu": "cpu"}
OURS = ("gateway", "gateway-cpu")
GPU_SERVERS = ("triton", "gateway")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read_compose(read_env(ENV_EXAMPLE))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def test_it_is_what_the_specification_allows(compose: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(compose)
    parsed = PyCompose.from_yaml(yaml.safe_dump(compose))
    parsed.validate()
    assert set(parsed.service_names()) == set(compose["services"])


def test_the_checks_find_mistakes(compose: dict[str, Any]) -> None:
    broken = json.loads(json.dumps(compose))
    broken["services"]["gateway"]["restrat"] = "always"
    with pytest.raises(ValueError, match="restrat"):
        PyCompose.from_yaml(yaml.safe_dump(broken))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(broken)


@pytest.mark.parametrize("name", ["MODEL_DIR", "MODEL_NAME", "API_KEYS_FILE"])
def test_what_must_be_chosen_is_asked_for(name: str) -> None:
    variables = read_env(ENV_EXAMPLE) | {name: ""}
    with pytest.raises(MissingVariableError, match=rf"set {name} in .env"):
        interpolate(COMPOSE_FILE.read_text(), variables)


def test_env_example_has_every_choice_with_its_default() -> None:
    known = read_env(ENV_EXAMPLE, commented=True)
    text = COMPOSE_FILE.read_text()
    used = set(re.findall(r"\$\{(\w+)", text))
    settings = {f"GATEWAY_{name.upper()}" for name in set(Settings.model_fields) - SET_BY_COMPOSE}
    assert set(known) == used | settings | TRACING | {"COMPOSE_PROFILES"}
    assert {name: known[name] for name in default_variables(text)} == default_variables(text)
    for name in settings:
        default = Settings.model_fields[name.removeprefix("GATEWAY_").lower()].default
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        assert known[name] == ("" if default == () else shown), name


@pytest.mark.parametrize("name", OURS)
def test_each_setting_of_the_gateway_is_handed_on(services: dict[str, dict[str, Any]], name: str) -> None:
    environment = services[name]["environment"]
    handed_on = {variable for variable, value in environment.items() if value is None}
    settings = {f"GATEWAY_{field.upper()}" for field in set(Settings.model_fields) - SET_BY_COMPOSE}
    assert handed_on == settings | TRACING
    assert environment["GATEWAY_API_KEYS_FILE"] == "/run/secrets/api_keys"
    assert "GATEWAY_API_KEYS" not in environment


def test_order_of_the_start(services: dict[str, dict[str, Any]]) -> None:
    assert services["triton"]["depends_on"] == {"engine-build": {"condition": "service_completed_successfully"}}
    assert services["gateway"]["depends_on"] == {"triton": {"condition": "service_healthy"}}
    assert services["gateway-cpu"]["depends_on"] == {
        "engine-build-cpu": {"condition": "service_completed_successfully"}
    }
    for service in services.values():
        for needed, _ in service.get("depends_on", {}).items():
            assert services[needed]["profiles"] == service["profiles"]


def test_profiles(services: dict[str, dict[str, Any]]) -> None:
    assert {name: service["profiles"] for name, service in services.items()} == {
        "engine-build": ["gpu"],
        "triton": ["gpu"],
        "gateway": ["gpu"],
        "engine-build-cpu": ["cpu"],
        "gateway-cpu": ["cpu"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }
    needs_gpu = {name for name, service in services.items() if "reservations" in service["deploy"]["resources"]}
    assert needs_gpu == {"engine-build", "triton"}


def test_triton_is_reached_from_inside_only(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    assert "ports" not in services["triton"]
    assert services["triton"]["networks"] == ["inner"]
    assert compose["networks"]["inner"] == {"internal": True}
    for name in BUILDERS:
        assert services[name]["network_mode"] == "none"


def test_published_ports_are_on_loopback_unless_asked_for(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_container_is_bounded_and_has_no_rights(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["deploy"]["resources"]["limits"]["memory"], name
        assert service["logging"]["options"]["max-size"], name
        assert service["restart"] == ("no" if name in BUILDERS else "unless-stopped"), name
        if "nvidia" not in str(service["deploy"]):
            assert service["read_only"], name


def test_every_server_has_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    for name in set(services) - set(BUILDERS) - set(OURS):
        assert services[name]["healthcheck"]["test"][0] == "CMD", name
    for name in OURS:
        assert "healthcheck" not in services[name], "the image has one"


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_sees_the_model_read_only(services: dict[str, dict[str, Any]], name: str) -> None:
    model, engines = services[name]["volumes"]
    assert model["read_only"]
    assert model["bind"] == {"create_host_path": False}
    assert engines.endswith(":/engines")
    server = services["triton" if name == "engine-build" else "gateway-cpu"]
    assert server["volumes"][0] == f"{engines}:ro"


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builders_command_is_one_that_engine_build_takes(name: str) -> None:
    variables = read_env(ENV_EXAMPLE) | {"ENGINE_OPTIONS": "--max-batch-size 16 --prompt 'query=query: '"}
    service = read_compose(variables)["services"][name]
    command = shlex.split(service["command"])
    assert command[1:3] == ["-m", "engine_build"]
    options = engine_build_parser().parse_args(command[3:])
    assert options.model == Path(service["volumes"][0]["target"])
    assert options.repo == Path("/engines/repository")
    assert options.max_batch_size == 16
    assert options.prompt == [("query", "query: ")]


def test_builder_and_server_share_one_release(services: dict[str, dict[str, Any]]) -> None:
    builder, server = services["engine-build"]["build"], services["triton"]["build"]
    assert builder["args"] == server["args"]
    assert builder["dockerfile"] == server["dockerfile"] == "Dockerfile.triton"


@pytest.mark.parametrize("name", ["engine-build", "triton", "gateway", "gateway-cpu"])
def test_built_images_exist(services: dict[str, dict[str, Any]], name: str) -> None:
    build = services[name]["build"]
    instructions = read_instructions(ROOT / build["dockerfile"])
    assert build["target"] in {each.stage for each in instructions}
    arguments = {each.arguments.partition("=")[0] for each in instructions if each.name == "ARG"}
    assert set(build["args"]) <= arguments


def test_mounted_files_exist(services: dict[str, dict[str, Any]]) -> None:
    for name in ("prometheus", "grafana"):
        for volume in services[name]["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).is_dir(), source


def test_gateway_and_triton_share_memory(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    (theirs,), (ours,) = ([one for one in services[name]["volumes"] if isinstance(one, dict)] for name in GPU_SERVERS)
    assert theirs == ours
    assert (ours["target"], ours["volume"]) == ("/dev/shm", {"nocopy": True})
    options = compose["volumes"][ours["source"]]["driver_opts"]
    assert (options["type"], options["o"]) == ("tmpfs", "size=1g,mode=1777")
    # A region is its owner's alone.
    users = [
        [each.arguments for each in read_instructions(ROOT / services[name]["build"]["dockerfile"])
         if each.name == "USER" and each.stage == services[name]["build"]["target"]]
        for name in GPU_SERVERS
    ]  # fmt: skip
    assert users == [["10001:10001"], ["10001:10001"]]


def test_embedded_triton_has_shared_memory(services: dict[str, dict[str, Any]]) -> None:
    assert services["gateway-cpu"]["shm_size"] == "1g"
    assert services["gateway-cpu"]["volumes"] == ["engines-cpu:/engines:ro"]


@pytest.mark.parametrize("options", ["", "--allow-client-shm=true --log-verbose=1"])
def test_further_options_of_triton(options: str) -> None:
    service = read_compose(read_env(ENV_EXAMPLE) | {"TRITON_OPTIONS": options})["services"]["triton"]
    assert shlex.split(service["command"])[-len(options.split()) - 1 :] == ["--exit-timeout-secs=30", *options.split()]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (400, 1)])
def test_health_check_of_triton(services: dict[str, dict[str, Any]], status: int, code: int) -> None:
    class Triton(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v2/health/ready" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Triton) as server:
        Thread(target=server.handle_request, daemon=True).start()
        command = services["triton"]["healthcheck"]["test"][1:]
        command[-1] = command[-1].replace("8000", str(server.server_port))
        assert subprocess.run([sys.executable, *command[1:]], capture_output=True, check=False).returncode == code
