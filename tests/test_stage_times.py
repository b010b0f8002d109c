"""benchmarks/stage_times.py finds the functions whose time it takes."""

from __future__ import annotations

from support import run_beside_benchmarks


def test_every_stage_is_a_function_of_the_service() -> None:
    run_beside_benchmarks("import stage_times; stage_times.Stopwatch().install()")
