"""The Helm chart: rendered by Helm's own library, checked against Kubernetes' own schemas.

The two kinds of the Prometheus operator have no schema here: their few fields are looked at one by one.
"""

import re
from collections.abc import Iterator
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from engine_build.arguments import make_parser
from gateway.settings import Settings
from tests.deploy.monitoring import read_rules
from tests.gateway_process import ROOT

CHART = ROOT / "deploy" / "helm" / "embedding-gateway"
KUBERNETES_VERSIONS = ("1.25", "1.33")
OPERATOR = "monitoring.coreos.com/v1"

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "images": {"gateway": {"repository": "registry.example/gateway", "tag": "1.2.3", "pullPolicy": "Always"}},
        "imagePullSecrets": [{"name": "pull"}],
        "models": [
            {"name": "small", "path": "all-MiniLM-L6-v2", "options": ["--max-batch-size=16"]},
            {"name": "large", "path": "moka/m3e-base", "options": ["--prompt=query=query: "]},
        ],
        "modelVolume": {"hostPath": {"path": "/srv/models", "type": "Directory"}},
        "engines": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]},
        "engineBuild": {"nodeSelector": {"gpu": "h200"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        "triton": {
            "autoscaling": {"enabled": True},
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
        "gateway": {
            "settings": {"workers": 2, "max_queued_tokens": 3_000_000, "max_queue_s": 2.5, "log_level": "debug"},
            "otel": {"exporter_otlp_endpoint": "http://collector.monitoring:4318"},
            "apiKeysSecret": "keys",
            "autoscaling": {"enabled": True},
            "service": {"type": "LoadBalancer", "port": 443},
        },
        "networkPolicy": {"gatewayFrom": [{"namespaceSelector": {"matchLabels": {"team": "search"}}}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
    },
    "least": {
        "engines": {"existingClaim": "engines"},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the manifests of a release `demo`."""
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="demo", namespace="search")
    documents = [each for path, text in files.items() if path.endswith(".yaml") for each in yaml.safe_load_all(text)]
    return [document for document in documents if document]


def find(manifests: list[dict[str, Any]], kind: str, end: str = "") -> dict[str, Any]:
    (found,) = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(end)]
    return found


def pod_specs(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (each["spec"]["template"]["spec"] for each in manifests if each["kind"] in ("Deployment", "Job"))


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(VARIANTS[request.param])


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return render(VARIANTS["everything"])


def test_helms_linter_finds_nothing() -> None:
    found = helm_python.lint(str(CHART))
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_are_what_kubernetes_takes(manifests: list[dict[str, Any]], version: str) -> None:
    for manifest in manifests:
        if manifest["apiVersion"] != OPERATOR:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_find_mistakes(everything: list[dict[str, Any]]) -> None:
    deployment = find(everything, "Deployment", "gateway")
    broken = deployment | {"spec": deployment["spec"] | {"replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(broken, KUBERNETES_VERSIONS[-1], strict=True)


def test_kinds(everything: list[dict[str, Any]]) -> None:
    assert sorted(each["kind"] for each in everything) == sorted(
        ["Deployment"] * 2 + ["Service"] * 2 + ["Job", "PersistentVolumeClaim", "PrometheusRule"]
        + ["PodDisruptionBudget", "HorizontalPodAutoscaler", "ServiceMonitor"] * 2 + ["NetworkPolicy"] * 3
    )  # fmt: skip
    assert sorted(each["kind"] for each in render(VARIANTS["least"])) == ["Deployment"] * 2 + ["Job"] + ["Service"] * 2


def test_every_label_selector_finds_its_pods(everything: list[dict[str, Any]]) -> None:
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in everything if "template" in each.get("spec", {})]
    selectors = [
        selector.get("matchLabels", selector)
        for each in everything
        if each["kind"] in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy")
        and (selector := each["spec"].get("selector") or each["spec"]["podSelector"])
    ]
    assert len(selectors) == 9
    for selector in selectors:
        assert sum(selector.items() <= labels.items() for labels in pods) == 1


def test_every_container_has_no_rights(manifests: list[dict[str, Any]]) -> None:
    for pod in pod_specs(manifests):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in pod["initContainers"] + pod["containers"]:
            is_nvidias = container["name"] == "triton" or container["name"].startswith("model-")
            assert container["securityContext"].get("readOnlyRootFilesystem", False) != is_nvidias, container["name"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, container["name"]
            assert container["resources"]["limits"]["memory"], container["name"]
            assert container["resources"]["requests"], container["name"]


def test_volumes_that_are_mounted_exist(manifests: list[dict[str, Any]]) -> None:
    for pod in pod_specs(manifests):
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {
            mount["name"] for each in pod["initContainers"] + pod["containers"] for mount in each["volumeMounts"]
        }
        assert mounted == volumes


def test_models_and_engines_are_read_only_where_they_can_be(everything: list[dict[str, Any]]) -> None:
    for pod in pod_specs(everything):
        writers = {
            (each["name"], mount["name"])
            for each in pod["initContainers"] + pod["containers"]
            for mount in each["volumeMounts"]
            if mount["name"] in ("models", "engines", "api-keys") and not mount.get("readOnly")
        }
        assert writers in (set(), {("model-0", "engines"), ("model-1", "engines"), ("done", "engines")})


def test_builds_are_commands_that_engine_build_takes(everything: list[dict[str, Any]]) -> None:
    builds = find(everything, "Job")["spec"]["template"]["spec"]["initContainers"]
    assert {tuple(build["args"][:3]) for build in builds} == {("python3", "-m", "engine_build")}
    options = [make_parser().parse_args(build["args"][3:]) for build in builds]
    assert [each.name for each in options] == ["small", "large"]
    assert options[0].max_batch_size == 16
    assert options[1].prompt == [("query", "query: ")]
    assert str(options[1].model) == "/models/moka/m3e-base"


def test_servers_wait_for_the_build_of_this_release(everything: list[dict[str, Any]]) -> None:
    job = find(everything, "Job")
    build_id = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert job["metadata"]["name"] == f"demo-embedding-gateway-engines-{build_id}"
    for deployment in (each for each in everything if each["kind"] == "Deployment"):
        (wait,) = deployment["spec"]["template"]["spec"]["initContainers"]
        assert wait["command"][-1] == build_id


def test_another_model_is_another_build_and_another_setting_is_not() -> None:
    def build_id(**values: Any) -> str:
        name: str = find(render(values), "Job")["metadata"]["name"]
        return name

    default = build_id()
    assert build_id(gateway={"settings": {"workers": 3}}) == default
    assert build_id(models=[{"name": "other", "path": "other"}]) != default
    assert build_id(modelPrecision="fp32") != default
    assert build_id(images={"builder": {"repository": "b", "tag": "25.10"}}) != default


def test_settings_reach_the_gateway_as_they_were_written(everything: list[dict[str, Any]]) -> None:
    deployment = find(everything, "Deployment", "gateway")
    variables = {each["name"]: each["value"] for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables.pop("OTEL_EXPORTER_OTLP_ENDPOINT") == "http://collector.monitoring:4318"
    assert {name.removeprefix("GATEWAY_").lower() for name in variables} <= set(Settings.model_fields)
    assert variables["GATEWAY_MAX_QUEUED_TOKENS"] == "3000000"
    assert variables["GATEWAY_MAX_QUEUE_S"] == "2.5"
    assert variables["GATEWAY_WORKERS"] == "2"
    assert variables["GATEWAY_TRITON_URL"] == f"dns:///{find(everything, 'Service', 'triton')['metadata']['name']}:8001"


def test_the_gateway_may_drain(manifests: list[dict[str, Any]]) -> None:
    pod = find(manifests, "Deployment", "gateway")["spec"]["template"]["spec"]
    fields = Settings.model_fields
    assert pod["terminationGracePeriodSeconds"] > fields["drain_s"].default + fields["request_timeout_s"].default


def test_probes_ask_what_exists(manifests: list[dict[str, Any]]) -> None:
    gateway = find(manifests, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]
    triton = find(manifests, "Deployment", "triton")["spec"]["template"]["spec"]["containers"][0]
    paths = {each["name"]: [each[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
             for each in (gateway, triton)}  # fmt: skip
    assert paths == {
        "gateway": ["/health/live", "/health/live", "/health/ready"],
        "triton": ["/v2/health/live", "/v2/health/live", "/v2/health/ready"],
    }
    startup = gateway["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > Settings.model_fields["startup_timeout_s"].default


def test_scaling_is_left_to_the_autoscaler(everything: list[dict[str, Any]]) -> None:
    for each in everything:
        if each["kind"] == "Deployment":
            assert "replicas" not in each["spec"]
        if each["kind"] == "HorizontalPodAutoscaler":
            assert find(everything, "Deployment", each["spec"]["scaleTargetRef"]["name"])


def test_triton_is_reached_by_the_gateway_alone(everything: list[dict[str, Any]]) -> None:
    service = find(everything, "Service", "triton")
    assert service["spec"]["clusterIP"] == "None"
    policy = find(everything, "NetworkPolicy", "triton")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    calls, metrics = policy["ingress"]
    assert calls["ports"] == [{"port": "grpc"}]
    assert calls["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert metrics["ports"] == [{"port": "metrics"}]


def test_a_collector_of_traces_can_be_reached_where_one_is_named(everything: list[dict[str, Any]]) -> None:
    collector = {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]}
    for manifests, is_named in ((everything, True), (render({}), False)):
        egress = find(manifests, "NetworkPolicy", "demo-embedding-gateway")["spec"]["egress"]
        assert (collector in egress) is is_named


def test_monitoring(everything: list[dict[str, Any]]) -> None:
    monitors = [each for each in everything if each["kind"] == "ServiceMonitor"]
    for monitor in monitors:
        assert monitor["apiVersion"] == OPERATOR
        selector = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [
            each
            for each in everything
            if each["kind"] == "Service" and selector.items() <= each["metadata"]["labels"].items()
        ]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] in ("gateway", "triton")
    rules = find(everything, "PrometheusRule")["spec"]["groups"]
    names = [rule.get("alert") for group in rules for rule in group["rules"] if "alert" in rule]
    assert names == [rule["alert"] for rule in read_rules("alert")]
    assert "{{ $labels.instance }}" in str(rules)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replicas": 2}, "replicas"),
        ({"modelPrecision": "int4"}, "modelPrecision"),
        ({"models": []}, "models"),
        ({"models": [{"name": "a b", "path": "x"}]}, "name"),
        ({"gateway": {"settings": {"WORKERS": 2}}}, "WORKERS"),
    ],
)
def test_values_that_are_nonsense_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(complaint)):
        render(values)
