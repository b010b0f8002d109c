"""The files in deploy/ pass their tools' checks: image, compose, Helm chart, systemd unit, gateway."""

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
from support import ROOT, data_of

from ocrsvc.settings.describe import groups, variable_of
from ocrsvc.settings.load import CONFIG_VARIABLE
from ocrsvc.settings.settings import Settings

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "ocrsvc"
SCHEMA = CHART / "values.schema.json"
# Settings that other values of the chart determine.
BY_VALUES = {f"OCRSVC_{name}" for name in ("BIND", "GRPC_BIND", "DEADLINE_S", "DEVICE", "GPU_HARD_BYTES", "JOBS_DIR")}
_SOON_S = 60.0

# The oldest version that Chart.yaml allows, and the newest one that kubernetes-validate knows.
KUBERNETES = ("1.27", "1.37")
CUSTOM = {"ScaledObject", "ServiceMonitor"}
ALL_ON, REFUSED = (data_of("chart_values")[name] for name in ("all_on", "refused"))
# OpenShift chooses the user ID.
OPENSHIFT: Mapping[str, Any] = {"runAsUser": None}
KEPT: Mapping[str, Any] = {"jobs": {"claim": "ocr-jobs"}}
VALUES = pytest.mark.parametrize("values", [{}, ALL_ON, OPENSHIFT, KEPT], ids=["default", "all", "openshift", "jobs"])


# A separate process: Helm's library is written in Go, which keeps threads and signal handlers.
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
    if find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    answers, report = json.loads(run(sys.executable, "-c", HELM, given=json.dumps([str(CHART), cases, ALL_ON])))
    return answers, report


def run(*command: object, given: str | None = None) -> str:
    """Run a program, which must succeed, and return its output; skips the test if it is not installed."""
    beside = shutil.which(str(command[0]), path=str(Path(sys.executable).parent))
    program = beside or shutil.which(str(command[0]))
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    words = [program, *map(str, command[1:])]
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=_SOON_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _rendered(json.dumps(values))


@cache
def _rendered(values: str) -> list[dict[str, Any]]:
    [files] = helm([json.loads(values)])[0]
    assert isinstance(files, dict), files
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["spec"]
        elif "template" in manifest["spec"]:
            yield manifest["spec"]["template"]["spec"]


def test_helm_lint_accepts_the_chart() -> None:
    report = helm([])[1]
    found = [message["error"] for message in report["messages"]]
    assert (report["errors"], found) == ([], ["icon is recommended"])


@pytest.mark.parametrize("version", KUBERNETES)
@VALUES
def test_manifests_match_the_kubernetes_schema(values: Mapping[str, Any], version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    manifests = rendered(values)
    own = [manifest for manifest in manifests if manifest["kind"] not in CUSTOM]
    assert len(own) >= 5
    assert {manifest["kind"] for manifest in manifests} - {manifest["kind"] for manifest in own} in (set(), CUSTOM)
    for manifest in own:
        kubernetes.validate(manifest, version, strict=True)


# Volume types that the "restricted" pod security standard allows.
VOLUMES = ("emptyDir", "configMap", "secret", "persistentVolumeClaim")


@VALUES
def test_pods_meet_the_restricted_pod_security_standard(values: Mapping[str, Any]) -> None:
    batch = yaml.safe_load((DEPLOY / "kubernetes" / "ocrsvc-batch.yaml").read_text("utf-8"))
    found = list(pods([*rendered(values), batch]))
    assert len(found) == 3
    limits = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"].get("runAsUser", 10001) == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all(set(volume) <= {"name", *VOLUMES} for volume in pod.get("volumes", ()))
        for container in pod["containers"]:
            assert container["securityContext"] == limits
            assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.parametrize(("scheme", "protocols"), [("http", ["http", "kubernetes.io/h2c"]), ("https", ["https"] * 2)])
def test_probes_and_ports_follow_the_scheme(scheme: str, protocols: list[str]) -> None:
    manifests = rendered({"scheme": scheme, "grpc": {"enabled": True}})
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {service_of(manifests)[kind]["httpGet"]["scheme"] for kind in probes} == {scheme.upper()}
    [service] = [one for one in manifests if one["kind"] == "Service"]
    assert [port["appProtocol"] for port in service["spec"]["ports"]] == protocols


def test_large_numbers_are_not_written_in_exponent_form() -> None:
    settings = {"OCRSVC_MAX_BODY_BYTES": 67_108_864, "OCRSVC_TLS_CLIENTS": "optional", "OCRSVC_ACCESS_LOG": True}
    found = environment({"settings": settings})
    assert [found[name] for name in settings] == ["67108864", "optional", "true"]


def service_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    [pod] = [pod for pod in pods(manifests) if "terminationGracePeriodSeconds" in pod]
    container: dict[str, Any] = pod["containers"][0]
    return container


def environment(values: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in service_of(rendered(values))["env"] if "value" in one}


ONE_GIB = {"OCRSVC_JOBS_BYTES": "1GiB"}


# Several replicas take no jobs, which only one of them would know, unless OCRSVC_JOBS_BYTES is set.
@pytest.mark.parametrize(
    ("values", "jobs_bytes", "notes"),
    [
        ({}, None, "Jobs are lost with their pod"),
        (KEPT, None, "Jobs are kept in the claim ocr-jobs"),
        ({"replicas": 2}, "0", "No jobs are taken"),
        ({"keda": {"enabled": True}}, "0", "No jobs are taken"),
        ({"replicas": 2, "settings": ONE_GIB}, "1GiB", "JOBS WILL SEEM LOST"),
    ],
    ids=["default", "kept jobs", "replicas", "keda", "jobs of replicas"],
)
def test_chart_notes_say_where_jobs_are_kept(values: Mapping[str, Any], jobs_bytes: str | None, notes: str) -> None:
    assert environment(values).get("OCRSVC_JOBS_BYTES") == jobs_bytes
    [files] = helm([values])[0]
    [text] = [text for name, text in files.items() if name.endswith("NOTES.txt")]
    endings = r"Jobs are lost with their pod|Jobs are kept in the claim \S+\b|No jobs are taken|JOBS.+LOST"
    assert re.findall(endings, text) == [notes]


def test_pods_with_a_volume_for_jobs_do_not_overlap() -> None:
    [deployment] = [one["spec"] for one in rendered(KEPT) if one["kind"] == "Deployment"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
    assert {"name": "jobs", "persistentVolumeClaim": {"claimName": "ocr-jobs"}} in pod["volumes"]


def schema_text() -> str:
    """The chart's value schema, updated with the names of the declared settings."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    declared = {variable_of(name) for group in groups() for name in group.model_fields}
    schema["properties"]["settings"]["propertyNames"] = {"enum": sorted(declared - BY_VALUES | {CONFIG_VARIABLE})}
    return json.dumps(schema, indent=2) + "\n"


def test_chart_has_the_declared_settings_and_the_package_version() -> None:
    from ocrsvc import __version__

    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run: python tests/test_deploy_files.py"
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


@pytest.mark.parametrize("deadline_s", [60, 300])
def test_termination_grace_covers_the_deadline(deadline_s: int) -> None:
    manifests = rendered({"deadlineSeconds": deadline_s})
    name = "terminationGracePeriodSeconds"
    [grace_s] = [one[name] for one in pods(manifests) if name in one]
    _, wait_s = service_of(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    assert environment({"deadlineSeconds": deadline_s})["OCRSVC_DEADLINE_S"] == str(deadline_s)
    # gunicorn's graceful timeout is derived from the deadline in the same way (worker/config.py).
    assert grace_s > int(wait_s) + deadline_s + 5


def test_unknown_chart_values_are_refused() -> None:
    answers, _ = helm([values for values, _ in REFUSED])
    wrong = [(answer, named) for answer, (_, named) in zip(answers, REFUSED, strict=True) if named not in answer]
    assert wrong == []
    assert all(isinstance(answer, str) for answer in answers)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_files_are_valid_and_mount_existing_files(name: str) -> None:
    compose = pytest.importorskip("compose_spec")
    # Compose files may have YAML merge keys, which compose_spec does not resolve, but the YAML parser does.
    plain = yaml.safe_load((DEPLOY / "compose" / name).read_text(encoding="utf-8"))
    assert "ocrsvc" in compose.PyCompose.from_yaml(yaml.safe_dump(plain, sort_keys=False)).to_dict()["services"]
    mounted = [volume.split(":")[0] for one in plain["services"].values() for volume in one.get("volumes", ())]
    assert [file for file in mounted if file.startswith(".") and not (DEPLOY / "compose" / file).exists()] == []


def test_promtool_accepts_the_configuration_and_the_scaling_query(tmp_path: Path) -> None:
    [scaled] = [one for one in rendered({"keda": {"enabled": True}}) if one["kind"] == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    rule = {"groups": [{"name": "keda", "rules": [{"record": "wait", "expr": trigger["metadata"]["query"]}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule))
    run("promtool", "check", "config", "--syntax-only", DEPLOY / "compose" / "prometheus.yml")
    run("promtool", "check", "rules", tmp_path / "rules.yml")


def test_hadolint_accepts_the_dockerfile() -> None:
    assert run("hadolint", DEPLOY / "Containerfile") == ""


def test_image_contains_the_sources_of_the_wheel() -> None:
    from test_wheel import SOURCES

    held = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    assert held == {"ocrsvc", "deploy/requirements*.txt", *SOURCES}


def test_systemd_accepts_the_unit_with_low_exposure(tmp_path: Path) -> None:
    unit = tmp_path / "ocrsvc.service"
    text = (DEPLOY / "ocrsvc.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/ocrsvc/.venv/bin/ocrsvc serve", "/bin/true serve"))
    run("systemd-analyze", "verify", "--man=no", unit)
    # The threshold 20 is an exposure level of 2.0 out of 10.
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", DEPLOY / "ocrsvc.service")


def test_kong_hides_operator_routes_and_needs_a_key() -> None:
    kong = yaml.safe_load((DEPLOY / "kong.yaml").read_text(encoding="utf-8"))
    assert kong.keys() == {"_format_version", "upstreams", "services", "consumers"}
    [service] = kong["services"]
    assert service["host"] == kong["upstreams"][0]["name"]
    read, health = service["routes"]
    assert {plugin["name"] for plugin in read["plugins"]} == {"key-auth", "rate-limiting", "request-size-limiting"}
    paths = [*read["paths"], *health["paths"]]
    assert not any(path.startswith(("/ops", "/metrics")) or path == "/" for path in paths)


def test_deploy_files_name_only_existing_settings() -> None:
    known = {f"OCRSVC_{name.upper()}" for name in Settings.model_fields} | {"OCRSVC_CONFIG"}
    # The key variable that decK substitutes, and a placeholder for any setting's name.
    others = {"OCRSVC_KEY", "OCRSVC_NAME"}
    found = {
        f"{path.name}: {name}"
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.suffix != ".tgz"
        for name in re.findall(r"OCRSVC_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8"))
        if name not in known | others
    }
    assert found == set()


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
