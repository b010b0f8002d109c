"""Writes the table and the chart of README.md and docs/ from the results of benchmarks/peers.py.

    python benchmarks/peers_table.py [FILE]

Copies FILE (default results/peers.json) to docs/peers.json, draws docs/peers.svg, and writes the table between its
marks in README.md. This program measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.charts import Panel, draw
from bench.markdown import write_between
from bench.results import RESULTS
from bench.service import ROOT

OURS = "ocrsvc"
COLUMNS = {
    "pages_per_s": "pages/s",
    "p50_s": "p50, s",
    "p95_s": "p95, s",
    "p99_s": "p99, s",
    "max_s": "slowest, s",
    "cpu_s_per_page": "CPU s a page",
    "peak_rss_mb": "peak RSS, MB",
    "f1": "token F1",
}
NAMES = {
    "ocrsvc": "**ocrsvc**",
    "ocrsvc_fp32": "ocrsvc in single precision",
    "ocrsvc_best": "ocrsvc at its best",
    "ocrsvc_int8": "ocrsvc after `ocrsvc optimize`",
    "turboocr": "TurboOCR 4",
    "turboocr_best": "TurboOCR 4, a replica with one thread for each core",
    "turboocr_openvino": "TurboOCR 4, OpenVINO wheel",
    "rapidocr": "RapidOCR alone",
    "rapidocr_best": "RapidOCR alone, OpenVINO, an engine for each core",
    "rapidocr_quick": "the same without classifier, pages of 960 px",
    "rapidocr_api": "rapidocr_api",
    "rapidocr_api_best": "rapidocr_api, a worker for each core, no classifier",
    "litserve": "RapidOCR behind LitServe",
    "litserve_best": "RapidOCR behind LitServe, OpenVINO, a worker for each core",
    "bentoml": "RapidOCR behind BentoML",
    "bentoml_best": "RapidOCR behind BentoML, OpenVINO, a worker for each core",
    "tesseract": "Tesseract 5",
    "tesseract_best": "Tesseract 5, one thread a page",
}

Figures = Mapping[str, Any]


def in_order(figures: Figures) -> Mapping[str, Any]:
    """The measured systems, ours first."""
    return {name: figures["systems"][name] for name in NAMES if name in figures["systems"]}


def table(figures: Figures) -> str:
    """The Markdown table of all systems under each load."""
    systems = in_order(figures)
    columns = {name: head for name, head in COLUMNS.items() if is_measured(systems, name)}
    head = ["clients", "system", *columns.values()]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for clients in next(iter(systems.values())):
        for name, loads in systems.items():
            cells = [cell(column, loads[clients].get(column)) for column in columns]
            rows.append("| " + " | ".join([clients, NAMES[name], *cells]) + " |")
    often = "once" if figures["rounds"] == 1 else f"{figures['rounds']} times"
    machine, day = figures["machine"].split(", Linux")[0], figures["when"][:10]
    caption = f"{figures['pages']} corpus pages, each {often}, systems in turn; {machine}; {day}"
    caption += f", commit {figures['commit']}." if "commit" in figures else "."
    return "\n".join([*rows, "", caption])


def is_measured(systems: Figures, column: str) -> bool:
    """Whether any system has a figure in this column."""
    return any(row.get(column) is not None for loads in systems.values() for row in loads.values())


def cell(column: str, value: float | None) -> str:
    """A figure with three digits; memory in whole megabytes."""
    if value is None:
        return ""
    return f"{value:.0f}" if column == "peak_rss_mb" else f"{value:.3g}"


def chart(figures: Figures) -> str:
    """SVG of pages per second, the slowest page and the memory under the highest load."""
    systems = in_order(figures)
    clients = list(next(iter(systems.values())))[-1]
    shown = {"pages_per_s": "pages a second", "max_s": "slowest page, seconds", "peak_rss_mb": "peak RSS, MB"}
    return draw(
        [
            Panel(
                f"{what}, {clients} clients", [(name, loads[clients][column]) for name, loads in systems.items()], OURS
            )
            for column, what in shown.items()
        ]
    )


def main() -> int:
    """Write table, figures and chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS / "peers.json")
    text = parser.parse_args().file.read_text("utf-8")
    figures = json.loads(text)
    write_between(ROOT / "README.md", Path(__file__).name, table(figures))
    (ROOT / "docs" / "peers.json").write_text(text, "utf-8")
    (ROOT / "docs" / "peers.svg").write_text(chart(figures), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
