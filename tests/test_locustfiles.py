"""The load scripts run under locust; with right answers they pass."""

import subprocess

import pytest
from support import ROOT, Server, run_program

LOCUSTFILES = ROOT / "locustfiles"


def run_locust(name: str, host: str, run_s: int = 3) -> subprocess.CompletedProcess[str]:
    load = ("--headless", "-u", "4", "-r", "4", "-t", f"{run_s}s", "--only-summary", "--host", host)
    query = {"LOAD_QUERY": "lang=auto"}
    return run_program("-m", "locust", "-f", LOCUSTFILES / f"{name}.py", *load, env=query)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["steady", "staircase", "mixed"])
def test_right_answers_pass(name: str, server: Server) -> None:
    # On a busy machine, locust's start may take all of a short run.
    for run_s in (3, 15, 30):
        done = run_locust(name, server.url, run_s)
        if "No page was read" not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
