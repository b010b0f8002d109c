"""benchmarks/peers.py, peers_table.py and stage_times.py: percentiles, names, and functions whose time is taken."""

from __future__ import annotations

import json

import pytest
from support import run_beside_benchmarks


@pytest.mark.parametrize(
    ("share", "counts", "told"),
    [
        (0.5, (1, 2, 24), [None, 1, 12]),
        (0.95, (19, 20, 24), [None, 19, 22]),
        (0.99, (24, 99, 100), [None, None, 99]),
    ],
)
def test_a_percentile_is_reported_only_with_requests_beyond_it(
    share: float, counts: tuple[int, ...], told: list[int | None]
) -> None:
    code = f"""
import json
from bench.peer_load import quantile
print(json.dumps([quantile(range(count), {share}) for count in {counts}]))
"""
    assert json.loads(run_beside_benchmarks(code)) == told


def test_every_system_has_a_name_and_every_stage_is_an_existing_function() -> None:
    code = """
from bench.peer_systems import NAMES
import peers_table, stage_times
print([name for name in NAMES if name not in peers_table.NAMES])
stage_times.Stopwatch().install()
"""
    assert run_beside_benchmarks(code).strip() == "[]"


def test_a_percentile_without_values_has_no_column() -> None:
    row = {"pages_per_s": 1.5, "p50_s": 2, "p95_s": None, "p99_s": None, "max_s": 3, "cpu_s_per_page": 1}
    row |= {"peak_rss_mb": 700, "f1": 0.97}
    systems = {"ocrsvc": {"20": row}, "tesseract": {"20": row | {"p95_s": 2.5}}}
    figures = {"systems": systems, "rounds": 1, "pages": 3, "machine": "a processor, Linux", "when": "2026-11-22T09:00"}
    table = run_beside_benchmarks(f"import peers_table; print(peers_table.table({figures!r}))")
    assert table.splitlines()[0] == (
        "| clients | system | pages/s | p50, s | p95, s | slowest, s | CPU s a page | peak RSS, MB | token F1 |"
    )
    assert table.splitlines()[2] == "| 20 | **ocrsvc** | 1.5 | 2 |  | 3 | 1 | 700 | 0.97 |"
