"""The files of deploy/ are what the tools that read them accept: image, compose, chart, unit, gateway."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_schema import SCHEMA, schema_text
from support import ROOT

from ocrsvc.settings.settings import Settings

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "ocrsvc"
_SOON_S = 60.0

# Chart.yaml's oldest, and the newest that kubernetes-validate knows.
KUBERNETES = ("1.27", "1.37")
CUSTOM = {"ScaledObject", "ServiceMonitor"}
ALL_ON: Mapping[str, Any] = {
    "scheme": "https",
    "testAuthority": "/var/lib/ocrsvc/ca.crt",
    "grpc": {"enabled": True},
    "gpu": {"enabled": True, "memoryBytes": 20_000_000_000, "runtimeClassName": "nvidia"},
    "networkPolicy": {"from": [{"podSelector": {}}], "egress": [{"ports": [{"port": 6379}]}]},
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "tlsConfig": {"ca": {"secret": {"name": "ocrsvc-tls", "key": "ca.crt"}}},
        "authorization": {"credentials": {"name": "ocrsvc-metrics", "key": "key"}},
    },
    "keda": {"enabled": True},
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["ocr.example.com"]},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "envFrom": [{"secretRef": {"name": "ocrsvc"}}],
    "extraVolumes": [{"name": "keys", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "keys", "mountPath": "/var/lib/ocrsvc"}],
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "imagePullSecrets": [{"name": "registry"}],
}
# OpenShift chooses the user.
OPENSHIFT: Mapping[str, Any] = {"runAsUser": None}
KEPT: Mapping[str, Any] = {"jobs": {"claim": "ocr-jobs"}}
VALUES = pytest.mark.parametrize(
    "values", [{}, ALL_ON, OPENSHIFT, KEPT], ids=["default", "all on", "openshift", "kept jobs"]
)


# Helm's library is Go's, which keeps threads and handlers of signals: it gets a process of its own.
HELM = """
import json, sys
import helm_python as helm
chart, cases, on = json.load(sys.stdin)
answers = []
with helm.Chart.load(chart) as loaded:
    for values in cases:
        try:
            answers.append(loaded.render(values=values, name="demo", namespace="ocr"))
        except helm.HelmError as error:
            answers.append(str(error))
print(json.dumps([answers, helm.lint(chart, on, strict=True, namespace="ocr")]))
"""


def helm(cases: Sequence[Mapping[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Helm's answer to each set of values: the files, or what is wrong with it; and what it says of the chart."""
    if find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    done = subprocess.run(
        [sys.executable, "-c", HELM],
        input=json.dumps([str(CHART), cases, ALL_ON]),
        capture_output=True,
        text=True,
        timeout=_SOON_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, report = json.loads(done.stdout)
    return answers, report


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The manifests of the chart with these values, by Helm's own code."""
    return _rendered(json.dumps(values))


@cache
def _rendered(values: str) -> list[dict[str, Any]]:
    [files] = helm([json.loads(values)])[0]
    assert isinstance(files, dict), files
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The specification of every pod that manifests make."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["spec"]
        elif "template" in manifest["spec"]:
            yield manifest["spec"]["template"]["spec"]


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    report = helm([])[1]
    found = [message["error"] for message in report["messages"]]
    assert (report["errors"], found) == ([], ["icon is recommended"])


@pytest.mark.parametrize("version", KUBERNETES)
@VALUES
def test_the_manifests_are_what_kubernetes_accepts(values: Mapping[str, Any], version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    manifests = rendered(values)
    own = [manifest for manifest in manifests if manifest["kind"] not in CUSTOM]
    assert len(own) >= 5
    assert {manifest["kind"] for manifest in manifests} - {manifest["kind"] for manifest in own} in (set(), CUSTOM)
    for manifest in own:
        kubernetes.validate(manifest, version, strict=True)


# The kinds that the profile "restricted" lets a pod have.
VOLUMES = ("emptyDir", "configMap", "secret", "persistentVolumeClaim")


@VALUES
def test_every_pod_is_restricted_as_pod_security_asks(values: Mapping[str, Any]) -> None:
    found = list(pods(rendered(values)))
    assert len(found) == 2
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"].get("runAsUser", 10001) == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all(set(volume) <= {"name", *VOLUMES} for volume in pod.get("volumes", ()))
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_probes_ask_as_the_service_is_spoken_to(scheme: str) -> None:
    [pod, _] = sorted(pods(rendered({"scheme": scheme})), key=lambda pod: "volumes" not in pod)
    [container] = pod["containers"]
    asked = {container[kind]["httpGet"]["scheme"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert asked == {scheme.upper()}


def test_a_large_number_is_a_setting_as_it_is_written() -> None:
    settings = {"OCRSVC_MAX_BODY_BYTES": 67_108_864, "OCRSVC_TLS_CLIENTS": "optional", "OCRSVC_ACCESS_LOG": True}
    found = environment({"settings": settings})
    assert [found[name] for name in settings] == ["67108864", "optional", "true"]


def environment(values: Mapping[str, Any]) -> dict[str, str]:
    """The service's environment variables in the chart with these values."""
    [pod] = [pod for pod in pods(rendered(values)) if "volumes" in pod and "terminationGracePeriodSeconds" in pod]
    return {one["name"]: one["value"] for one in pod["containers"][0]["env"] if "value" in one}


@pytest.mark.parametrize("values", [{"replicas": 2}, {"keda": {"enabled": True}}], ids=["replicas", "keda"])
def test_several_replicas_take_no_jobs_which_only_one_of_them_would_know(values: Mapping[str, Any]) -> None:
    assert environment(values)["OCRSVC_TASKS_BYTES"] == "0"
    assert environment({**values, "settings": {"OCRSVC_TASKS_BYTES": "1GiB"}})["OCRSVC_TASKS_BYTES"] == "1GiB"
    assert "OCRSVC_TASKS_BYTES" not in environment({})


def test_jobs_in_a_claim_are_those_of_one_pod_at_a_time() -> None:
    [deployment] = [one["spec"] for one in rendered(KEPT) if one["kind"] == "Deployment"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
    assert {"name": "jobs", "persistentVolumeClaim": {"claimName": "ocr-jobs"}} in pod["volumes"]


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ({}, "Jobs are lost with their pod"),
        (KEPT, "Jobs are kept in the claim ocr-jobs"),
        ({"replicas": 2}, "No jobs are taken"),
        ({"keda": {"enabled": True}}, "No jobs are taken"),
        ({"replicas": 2, "settings": {"OCRSVC_TASKS_BYTES": "1GiB"}}, "JOBS WILL SEEM LOST"),
    ],
    ids=["default", "kept jobs", "replicas", "keda", "jobs of replicas"],
)
def test_the_notes_say_what_becomes_of_jobs(values: Mapping[str, Any], notes: str) -> None:
    [files] = helm([values])[0]
    [text] = [text for name, text in files.items() if name.endswith("NOTES.txt")]
    assert re.findall(
        r"Jobs are lost with their pod|Jobs are kept in the claim \S+\b|No jobs are taken|JOBS.+LOST", text
    ) == [notes]


def test_the_schema_names_the_settings_that_are_declared() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run: python tests/chart_schema.py"


@pytest.mark.parametrize(("scheme", "protocols"), [("http", ["http", "kubernetes.io/h2c"]), ("https", ["https"] * 2)])
def test_the_service_says_what_its_ports_speak(scheme: str, protocols: list[str]) -> None:
    manifests = rendered({"scheme": scheme, "grpc": {"enabled": True}})
    [service] = [one for one in manifests if one["kind"] == "Service"]
    assert [port["appProtocol"] for port in service["spec"]["ports"]] == protocols


@pytest.mark.parametrize("deadline_s", [60, 300])
def test_a_pod_has_time_to_answer_what_it_has(deadline_s: int) -> None:
    [pod] = [pod for pod in pods(rendered({"deadlineSeconds": deadline_s})) if "terminationGracePeriodSeconds" in pod]
    [container] = pod["containers"]
    _, wait_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert environment({"deadlineSeconds": deadline_s})["OCRSVC_DEADLINE_S"] == str(deadline_s)
    # As gunicorn's graceful timeout is made of the deadline (worker/config.py).
    assert pod["terminationGracePeriodSeconds"] > int(wait_s) + deadline_s + 5


REFUSED: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"replica": 3}, "replica"),
    ({"replicas": 0}, "replicas"),
    ({"settings": {"OCRSVC_DEADLINE_S": 9}}, "OCRSVC_DEADLINE_S"),
    ({"settings": {"WORKERS": 2}}, "WORKERS"),
    ({"settings": {"OCRSVC_WORKER": 2}}, "OCRSVC_WORKER"),
    ({"settings": {"OCRSVC_TASKS_DIR": "/tmp"}}, "OCRSVC_TASKS_DIR"),
    ({"replicas": 2, "jobs": {"claim": "ocr-jobs"}}, "replicas"),
    ({"keda": {"enabled": True}, "jobs": {"claim": "ocr-jobs"}}, "keda"),
    ({"settings": {"OCRSVC_TLS_CERTIFICATE": "/tls/tls.crt"}}, "scheme"),
    ({"scheme": "https", "settings": {"OCRSVC_TLS_CLIENT_CA": "/tls/ca.crt"}}, "OCRSVC_TLS_CLIENTS"),
    ({"ingress": {"enabled": True}}, "hosts"),
    ({"grpc": {"enabled": True, "port": 8000}}, "port"),
    ({"runAsUser": 0}, "runAsUser"),
    ({"gpu": {"memory": 1}}, "gpu"),
    ({"networkPolicy": {"from": "everybody"}}, "networkPolicy"),
    ({"resources": {"limits": {"cpu": None}}}, "resources"),
)


def test_values_that_would_do_nothing_are_refused() -> None:
    answers, _ = helm([values for values, _ in REFUSED])
    wrong = [(answer, named) for answer, (_, named) in zip(answers, REFUSED, strict=True) if named not in answer]
    assert wrong == []
    assert all(isinstance(answer, str) for answer in answers)


def test_the_chart_is_of_the_version_of_the_package() -> None:
    from ocrsvc import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_the_compose_files_follow_the_specification(name: str) -> None:
    compose = pytest.importorskip("compose_spec")
    text = (DEPLOY / "compose" / name).read_text(encoding="utf-8")
    # The specification has merge keys as YAML has them, which its parser leaves to YAML's.
    plain = yaml.safe_dump(yaml.safe_load(text), sort_keys=False)
    assert "ocrsvc" in compose.PyCompose.from_yaml(plain).to_dict()["services"]


def test_every_file_that_compose_mounts_is_there() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounted = [volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())]
    missing = [name for name in mounted if name.startswith(".") and not (DEPLOY / "compose" / name).exists()]
    assert missing == []


def test_prometheus_reads_its_configuration_and_the_query_that_scales(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    [scaled] = [one for one in rendered({"keda": {"enabled": True}}) if one["kind"] == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    rule = {"groups": [{"name": "keda", "rules": [{"record": "wait", "expr": trigger["metadata"]["query"]}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule))
    for command in (
        ["config", "--syntax-only", str(DEPLOY / "compose" / "prometheus.yml")],
        ["rules", str(tmp_path / "rules.yml")],
    ):
        done = subprocess.run(
            [promtool, "check", *command], capture_output=True, text=True, timeout=_SOON_S, check=False
        )
        assert done.returncode == 0, done.stderr


def test_hadolint_finds_nothing_wrong_with_the_image() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True, timeout=_SOON_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_holds_what_the_wheel_is_made_of() -> None:
    from test_wheel import SOURCES

    held = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    assert held == {"ocrsvc", "deploy/requirements*.txt", *SOURCES}


def test_systemd_counts_little_that_the_unit_may_do() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", DEPLOY / "ocrsvc.service"],
        capture_output=True,
        text=True,
        timeout=_SOON_S,
        check=False,
    )
    # 20 is an exposure of 2.0, of 10.
    assert done.returncode == 0, done.stdout


def test_kong_refuses_what_operators_keep_to_themselves_and_asks_for_a_key() -> None:
    kong = yaml.safe_load((DEPLOY / "kong.yaml").read_text(encoding="utf-8"))
    assert kong.keys() == {"_format_version", "upstreams", "services", "consumers"}
    [service] = kong["services"]
    assert service["host"] == kong["upstreams"][0]["name"]
    read, health = service["routes"]
    assert {plugin["name"] for plugin in read["plugins"]} == {"key-auth", "rate-limiting", "request-size-limiting"}
    paths = [*read["paths"], *health["paths"]]
    assert not any(path.startswith(("/ops", "/metrics")) or path == "/" for path in paths)


def test_no_file_of_deploy_names_a_setting_that_there_is_not() -> None:
    known = {f"OCRSVC_{name.upper()}" for name in Settings.model_fields} | {"OCRSVC_CONFIG"}
    # The key that decK puts in, and any.
    others = {"OCRSVC_KEY", "OCRSVC_NAME"}
    found = {
        f"{path.name}: {name}"
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.suffix != ".tgz"
        for name in re.findall(r"OCRSVC_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8"))
        if name not in known | others
    }
    assert found == set()
