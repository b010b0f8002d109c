"""Writes the table and the chart of README.md and docs/ from the results of benchmarks/peers.py.

    python benchmarks/peers_table.py [FILE]

Takes the figures of FILE (results/peers.json if left out), keeps them as docs/peers.json, draws docs/peers.svg, and
writes the table between the two marks in README.md. Nothing is measured here, and nothing typed by hand there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.charts import Panel, draw
from bench.results import RESULTS
from bench.service import ROOT

BEGIN, END = "<!-- made by benchmarks/peers_table.py -->", "<!-- to here -->"
OURS = "ocrsvc"
COLUMNS = {
    "pages_per_s": "pages/s",
    "p50_s": "p50, s",
    "p95_s": "p95, s",
    "p99_s": "p99, s",
    "cpu_s_per_page": "CPU s a page",
    "peak_rss_mb": "peak RSS, MB",
    "f1": "token F1",
}
NAMES = {
    "ocrsvc": "**ocrsvc**",
    "ocrsvc_int8": "ocrsvc after `ocrsvc optimize`",
    "rapidocr": "RapidOCR in process",
    "rapidocr_api": "rapidocr_api",
    "litserve": "RapidOCR behind LitServe",
    "bentoml": "RapidOCR behind BentoML",
    "tesseract": "Tesseract 5",
}

Figures = Mapping[str, Any]


def in_order(figures: Figures) -> Mapping[str, Any]:
    """The systems that were measured, ours first."""
    return {name: figures["systems"][name] for name in NAMES if name in figures["systems"]}


def table(figures: Figures) -> str:
    """All systems under each load, in Markdown."""
    head = ["clients", "system", *COLUMNS.values()]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    systems = in_order(figures)
    for clients in next(iter(systems.values())):
        for name, loads in systems.items():
            cells = [
                f"{loads[clients][column]:.3g}" if column != "peak_rss_mb" else f"{loads[clients][column]:.0f}"
                for column in COLUMNS
            ]
            rows.append("| " + " | ".join([clients, NAMES[name], *cells]) + " |")
    often = "once" if figures["rounds"] == 1 else f"{figures['rounds']} times"
    said = f"{figures['pages']} corpus pages, each {often}, systems in turn; {figures['machine'].split(', Linux')[0]}."
    return "\n".join([*rows, "", said])


def chart(figures: Figures) -> str:
    """Pages a second and the slowest hundredth under the highest load, and its memory."""
    systems = in_order(figures)
    clients = list(next(iter(systems.values())))[-1]
    shown = {"pages_per_s": "pages a second", "p99_s": "p99, seconds", "peak_rss_mb": "peak RSS, MB"}
    return draw(
        [
            Panel(
                f"{what}, {clients} clients", [(name, loads[clients][column]) for name, loads in systems.items()], OURS
            )
            for column, what in shown.items()
        ]
    )


def main() -> int:
    """Write the three; 0 when the README had its marks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS / "peers.json")
    text = parser.parse_args().file.read_text("utf-8")
    figures = json.loads(text)
    readme = ROOT / "README.md"
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    written, count = between.subn(lambda _: f"{BEGIN}\n{table(figures)}\n{END}", readme.read_text("utf-8"))
    if count != 1:
        sys.exit(f"README.md must hold {BEGIN} and {END} once")
    readme.write_text(written, "utf-8")
    (ROOT / "docs" / "peers.json").write_text(text, "utf-8")
    (ROOT / "docs" / "peers.svg").write_text(chart(figures), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
