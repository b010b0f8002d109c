"""Reference, alert rules and dashboard match the declared metrics; promtool tests the rules."""

import importlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT
from test_metrics import failures

from ocrsvc.cli.main import run
from ocrsvc.errors import OcrsvcError, OperatorError, Unreachable
from ocrsvc.monitoring.objectives import ALERTS, DASHBOARD, REFERENCE, Objectives, fill_in
from ocrsvc.telemetry.metric import BUCKETS_S
from ocrsvc.telemetry.metrics import CALLERS_LIMITS, METRICS, SERVICE_FAULTS

RULES_FILE = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULE_TESTS, KIND = ROOT / "tests" / "alerts_test.yml", "promql_expr_test"
USUAL = Objectives()
_LONG_S = 60.0
_NAME = re.compile(r"\b(?:ocrsvc_[a-z0-9_]+|process_[a-z_]+_seconds)\b")


def rules(objectives: Objectives = USUAL) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(fill_in(ALERTS, objectives))["groups"] for rule in group["rules"]]


def table(heading: str) -> list[list[str]]:
    section = fill_in(REFERENCE, USUAL).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def promtool(*args: str, stdin: str = "") -> str:
    """Run promtool, which must succeed, and return its output; skips the test if it is not installed."""
    program = shutil.which("promtool")
    if program is None and os.environ.get("CI"):
        pytest.fail("promtool is missing; .ci/run installs it with prometheus")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run([program, *args], input=stdin, capture_output=True, text=True, timeout=_LONG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_objective_counts_every_failure_that_is_the_services_fault() -> None:
    importlib.import_module("ocrsvc.app")
    ours = {code for status, code in failures(OcrsvcError) if status in (500, 503, 504)}
    command_line_codes = {code for kind in (OperatorError, Unreachable) for _, code in failures(kind)}
    assert set(SERVICE_FAULTS) == (ours - command_line_codes) | {"internal"}


@pytest.mark.parametrize(
    ("flag", "file"),
    [
        ("--markdown", ROOT / "docs" / "metrics.md"),
        ("--alerts", RULES_FILE),
        ("--dashboard", ROOT / "deploy" / "grafana" / "ocrsvc.json"),
    ],
)
def test_files_equal_the_output_of_their_commands(flag: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", flag]) == 0
    assert file.read_text(encoding="utf-8") == capsys.readouterr().out, f"run: ocrsvc metrics {flag} > {file.name}"


def test_metrics_command_lists_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [item.shown_name for item in METRICS]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--availability", "0.9"), "0.9 is no objective for availability"),
        (("--fast", "1"), "1 is no objective for fast"),
        (("--fast-s", "4"), "4 s is not the upper bound of a bucket"),
    ],
)
def test_bad_objectives_are_refused(args: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", "--alerts", *args]) == 78
    assert message in capsys.readouterr().err


def test_rules_depend_on_the_objectives() -> None:
    burning = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules(Objectives(0.999, 0.95, 0.5))}
    assert "> 14.4 * 0.001 " in burning["OcrsvcErrorBudgetBurnsFast"]
    assert "> 6 * 0.05 " in burning["OcrsvcLatencyBudgetBurnsFast"]
    assert 'le="0.5"' in burning["ocrsvc:slow_images:ratio_rate1h"]


# test_operators.py tests that a service exposes all metrics.
def test_alerts_and_dashboard_use_existing_metrics() -> None:
    histograms = [metric.name for metric in METRICS if metric.kind == "histogram"]
    exposed = {metric.shown_name for metric in METRICS}
    exposed |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    for text in (json.dumps(rules()), fill_in(DASHBOARD, USUAL)):
        assert set(_NAME.findall(text)) <= exposed


def test_reference_lists_every_metric() -> None:
    text = fill_in(REFERENCE, USUAL)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    rows = [row for heading in headings if heading != "Alerts" for row in table(heading)]
    cells = [[f"`{one.shown_name}`", one.shown_kind, ", ".join(one.labels), one.unit, one.help] for one in METRICS]
    assert sorted(rows) == sorted(cells)
    assert f"buckets up to {', '.join(f'{bound:g}' for bound in BUCKETS_S)} s." in text
    assert f"own\n  fault, whoever chose the deadline: {', '.join(SERVICE_FAULTS)}." in text


def test_reference_lists_every_alert() -> None:
    assert table("Alerts") == [
        [rule["alert"], rule["labels"]["severity"], rule["for"], f"`{rule['expr']}`", rule["annotations"]["action"]]
        for rule in rules()
        if "alert" in rule
    ]
    for rule in rules():
        if rule.get("record", "").endswith("_rate5m"):
            assert f"- `{rule['record']}`: `{rule['expr']}`\n" in fill_in(REFERENCE, USUAL)


def test_rules_use_the_services_fault_codes() -> None:
    text = fill_in(ALERTS, USUAL)
    assert set(re.findall(r'failures_total\{code=~"([^"]+)"\}\[(?:5m|3d)\]', text)) == {"|".join(SERVICE_FAULTS)}
    assert set(re.findall(r'reason!~"([^"]+)"', text)) == {"|".join(CALLERS_LIMITS)}


def test_promtool_accepts_the_rules_and_their_test_cases() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES_FILE))
    assert "SUCCESS" in promtool("test", "rules", str(RULE_TESTS))


def test_every_alert_has_a_firing_and_a_quiet_case() -> None:
    cases = [case for test in yaml.safe_load(RULE_TESTS.read_text("utf-8"))["tests"] for case in test.get(KIND, ())]
    for fires in (1, 0):
        found = {case["expr"].split('"')[1] for case in cases if case["exp_samples"][0]["value"] == fires}
        assert found == {rule["alert"] for rule in rules() if "alert" in rule}


def test_dashboard_shows_every_metric() -> None:
    shown = json.dumps(json.loads(fill_in(DASHBOARD, USUAL))["panels"])
    assert not [item.name for item in METRICS if not re.search(rf"\b{item.shown_name}(_(bucket|sum|count))?\b", shown)]
