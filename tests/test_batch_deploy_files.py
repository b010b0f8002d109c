"""The templates of deploy/ that run `ocrsvc batch` on clusters are valid and match the command."""

import os
import shlex
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support import ROOT, wait_until

from ocrsvc.cli.batch import batch, shard_of
from ocrsvc.errors import BadOption, RunChanged, SettingsError, SourceGone

SLURM = ROOT / "deploy" / "slurm" / "ocrsvc-batch.sbatch"
JOB = ROOT / "deploy" / "kubernetes" / "ocrsvc-batch.yaml"
RAY = ROOT / "deploy" / "ray" / "rayjob.yaml"
_SOON_S = 30.0
_MORE_TO_READ = 75

# 1.29 is the first version that enables backoffLimitPerIndex; 1.37 is the newest that kubernetes-validate knows.
KUBERNETES = ("1.29", "1.37")


def arguments(words: list[str]) -> SimpleNamespace:
    """The options that `ocrsvc batch` parses from these arguments; raises if they are invalid."""
    return SimpleNamespace(**batch.make_context("ocrsvc batch", words).params)


# Kubernetes.


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    [document] = yaml.safe_load_all(JOB.read_text(encoding="utf-8"))
    return dict(document)


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_job(job: dict[str, Any], version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    kubernetes.validate(job, version, strict=True)


def test_each_index_of_the_job_reads_its_shard(job: dict[str, Any]) -> None:
    [container] = job["spec"]["template"]["spec"]["containers"]
    values = {one["name"]: one for one in container["env"]}
    assert values["SHARDS"]["value"] == str(job["spec"]["completions"])
    assert "job-completion-index" in values["SHARD"]["valueFrom"]["fieldRef"]["fieldPath"]
    words = [
        word.replace("$(SHARD)", "7").replace("$(SHARDS)", values["SHARDS"]["value"]) for word in container["args"]
    ]
    assert words.pop(0) == "batch"
    options = arguments(words)
    assert shard_of(options.shard) == (7, 8)
    assert options.exit_zero


def test_a_job_stops_on_permanent_errors_and_survives_disruptions(job: dict[str, Any]) -> None:
    disrupted, *others = job["spec"]["podFailurePolicy"]["rules"]
    rules = {rule["action"]: rule["onExitCodes"]["values"] for rule in others}
    hopeless = {2} | {error.exit_code for error in (BadOption, RunChanged, SettingsError, SourceGone)}
    assert (set(rules["FailJob"]), rules["Ignore"]) == (hopeless, [_MORE_TO_READ])
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    # A restart by the kubelet would hide the exit code from podFailurePolicy.
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


# KubeRay.


def test_ray_workers_have_room_for_the_actors() -> None:
    spec = yaml.safe_load(RAY.read_text(encoding="utf-8"))["spec"]
    command, name, *words = shlex.split(spec["entrypoint"])
    assert (command, name) == ("ocrsvc", "batch")
    options = arguments(words)
    assert options.on == "ray"
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    cpus = int(container["resources"]["limits"]["cpu"])
    assert cpus % options.cpus_per_actor == 0
    assert options.actors <= cpus / options.cpus_per_actor * group["maxReplicas"]


# Slurm.


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a task; its `ocrsvc` and `scontrol` log their arguments, and `ocrsvc` exits with CODE."""
    programs = {
        "ocrsvc": 'trap "echo TERM >> $NOTES; exit 75" TERM; echo "ocrsvc $*" >> "$NOTES"\n'
        'while [ "$CODE" = wait ]; do sleep 0.05; done; exit "$CODE"',
        "scontrol": 'echo "scontrol $*" >> "$NOTES"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "notes").touch()
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NOTES": str(tmp_path / "notes"),
        "SLURM_ARRAY_JOB_ID": "40",
        "SLURM_ARRAY_TASK_ID": "3",
    }


READ_3_OF_9 = "ocrsvc batch scans --out read --shard 3/9 --take-over"


@pytest.mark.parametrize(
    ("more", "code", "notes"),
    [
        *(({"CODE": code}, int(code), [READ_3_OF_9.replace("9", "8")]) for code in ("0", "1", "65")),
        ({"CODE": "75", "SHARDS": "9"}, 0, [READ_3_OF_9, "scontrol requeue 40_3"]),
        ({"CODE": "75", "SHARDS": "9", "SLURM_RESTART_COUNT": "20"}, 75, [READ_3_OF_9]),
        # Task 3 has no shard if there are only three.
        ({"CODE": "0", "SHARDS": "3"}, 2, []),
    ],
)
def test_a_slurm_task_reads_its_shard_and_requeues_up_to_a_limit(
    slurm: dict[str, str], more: dict[str, str], code: int, notes: list[str]
) -> None:
    command = ["bash", str(SLURM), "scans", "--out", "read"]
    done = subprocess.run(command, env=slurm | more, timeout=_SOON_S, check=False)
    assert (done.returncode, Path(slurm["NOTES"]).read_text().splitlines()) == (code, notes)


def test_the_array_has_as_many_tasks_as_shards() -> None:
    text = SLURM.read_text(encoding="utf-8")
    assert ("#SBATCH --array=0-7\n" in text, "SHARDS=${SHARDS:-8}\n" in text) == (True, True)


def test_sigterm_to_the_script_ends_the_run_gracefully(slurm: dict[str, str]) -> None:
    notes = Path(slurm["NOTES"])
    process = subprocess.Popen(["bash", SLURM, "scans"], env=slurm | {"CODE": "wait"})
    wait_until(notes.read_text, "the command begins")
    process.send_signal(signal.SIGTERM)
    assert process.wait(_SOON_S) == 0
    assert notes.read_text().splitlines()[1:] == ["TERM", "scontrol requeue 40_3"]
