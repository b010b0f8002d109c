"""Short runs of benchmarks/overload.py and endurance.py: overload, and memory over time."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, run_program


def run(tmp_path: Path, script: str, *args: str) -> Any:
    """Run a benchmark and return its results; its exit status is ignored, as its goals are for longer runs."""
    out = tmp_path / "figures.json"
    done = run_program(ROOT / "benchmarks" / script, *args, "--out", out)
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text("utf-8"))


def missed_goals(figures: Any) -> list[str]:
    """The missed goals; other load on the machine can cause misses."""
    goals = {
        # The benchmark requires 0.95 and 50 ms; a run of seconds beside other tests is less exact.
        "goodput_share": figures["goodput_share"] >= 0.6,
        "refusal_p50_ms": figures["refusal_p50_ms"] <= 250,
        "accepted_max_ms": figures["accepted_max_ms"] <= figures["deadline_ms"],
        # The offered load is ten times the capacity, but the load generator also slows down beside other tests.
        "refused": figures["refused"] > 3 * figures["accepted"],
    }
    return [name for name, is_met in goals.items() if not is_met]


@pytest.mark.timeout(360)
def test_at_ten_times_its_capacity_the_service_still_answers_and_refuses_quickly(tmp_path: Path) -> None:
    for _ in range(3):
        figures = run(tmp_path, "overload.py", "--seconds", "4", "--capacity-seconds", "2")
        assert figures["wrong"] == {}
        if not missed_goals(figures):
            break
    assert not missed_goals(figures), figures


@pytest.mark.timeout(120)
def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    figures = run(tmp_path, "endurance.py", "--requests", "100", "--round", "1")
    # The benchmark requires 2 % over 50,000 requests; in 100, a worker's one-time allocations weigh more.
    assert figures["growth_share"] <= 0.10
    assert figures["requests"] >= 100
