"""Writes the figures of a benchmark to a file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import describe
from bench.service import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def write_result(name: str, figures: dict[str, object], out: Path | None = None) -> None:
    """Write figures, machine and time as JSON to `out` or results/NAME.json, and print the path."""
    file = out or RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = {"when": datetime.now(UTC).isoformat(timespec="seconds"), **describe(), **figures}
    file.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(f"written to {file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}")
