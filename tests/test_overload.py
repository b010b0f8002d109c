"""The short forms of benchmarks/overload.py and endurance.py: too much load, and memory over time."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, run_program


def run(tmp_path: Path, script: str, *args: str) -> Any:
    """The figures of a benchmark; its own goals are not asked for here, where the run is short."""
    out = tmp_path / "figures.json"
    done = run_program(ROOT / "benchmarks" / script, *args, "--out", out)
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text("utf-8"))


def short_of(figures: Any) -> list[str]:
    """The goals that were missed; how busy the machine is with others decides, too."""
    goals = {
        # The benchmark asks for 0.95 and 50 ms; a few seconds, beside other tests on the same cores, tell less exactly.
        "goodput_share": figures["goodput_share"] >= 0.6,
        "refusal_p50_ms": figures["refusal_p50_ms"] <= 250,
        "accepted_max_ms": figures["accepted_max_ms"] <= figures["deadline_ms"],
        # Ten times the capacity is offered; the load generator, too, falls behind beside other tests.
        "refused": figures["refused"] > 3 * figures["accepted"],
    }
    return [name for name, is_met in goals.items() if not is_met]


@pytest.mark.timeout(360)
def test_at_ten_times_its_capacity_the_service_keeps_working_and_refuses_quickly(tmp_path: Path) -> None:
    for _ in range(3):
        figures = run(tmp_path, "overload.py", "--seconds", "4", "--capacity-seconds", "2")
        assert figures["wrong"] == {}
        if not short_of(figures):
            break
    assert not short_of(figures), figures


@pytest.mark.timeout(120)
def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    figures = run(tmp_path, "endurance.py", "--requests", "100", "--round", "1")
    # The benchmark asks for 2 % over 50,000 requests; here what a worker allocates only once weighs more.
    assert figures["growth_share"] <= 0.10
    assert figures["requests"] >= 100
