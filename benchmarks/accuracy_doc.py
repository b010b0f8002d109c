"""Writes the table of docs/performance.md and a sentence of README.md from the results of benchmarks/accuracy.py.

    python benchmarks/accuracy_doc.py [FILE]

FILE defaults to results/accuracy_ppocr.json. This program measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.accuracy_table import FEW_MARK
from bench.bars import RAPIDOCR_F1, min_f1
from bench.corpus import ALL, HALVES
from bench.markdown import write_between
from bench.results import RESULTS
from bench.service import ROOT

Kinds = Mapping[str, Mapping[str, Mapping[str, Any]]]

COLUMNS: Final = (
    *("kind", "pages", "tokens", "token F1", *(f"F1 {half}" for half in HALVES), "F1 at least", "F1 of RapidOCR"),
    *("CER", *(f"CER {half}" for half in HALVES), "spaces beside Chinese right"),
)


def table(figures: Mapping[str, Any]) -> str:
    """The Markdown table of all kinds."""
    kinds: Kinds = figures["kinds"]
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(_cells(kind, kinds) for kind in sorted(kinds["all"]))]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", _caption(figures)])


def _cells(kind: str, kinds: Kinds) -> list[str]:
    whole, *halves = (kinds[part].get(kind) for part in ("all", *HALVES))
    assert whole is not None
    spaces = whole["spaces_mixed"]
    return [
        *("all" if kind == ALL else kind, str(whole["pages"]), str(whole["tokens"]), f"**{_f1(whole)}**"),
        *(_f1(half) for half in halves),
        *(f"{min_f1(kind):.3f}", f"{RAPIDOCR_F1[kind]:.3f}"),
        *(_cer(part) for part in (whole, *halves)),
        f"{spaces['right']:.3f} of {spaces['places']}" if spaces["places"] else "",
    ]


def _f1(tally: Mapping[str, Any] | None) -> str:
    return f"{tally['f1']:.3f}{_few(tally)}" if tally else ""


def _cer(tally: Mapping[str, Any] | None) -> str:
    return f"{tally['cer']:.3f}{_few(tally)}" if tally and tally["characters"] else ""


def _few(tally: Mapping[str, Any]) -> str:
    return f" ({FEW_MARK})" if tally["few"] else ""


def _caption(figures: Mapping[str, Any]) -> str:
    caption = f"{figures['machine'].split(', Linux')[0]}; {figures['when'][:10]}, commit {figures['commit']}"
    if "wall_s" in figures:
        caption += f"; {figures['cpu_s_per_page']} CPU s a page, peak RSS {figures['peak_rss_mb']} MB"
    return caption + "."


def sentence(figures: Mapping[str, Any]) -> str:
    """The sentence for README.md."""
    whole, reporting = (figures["kinds"][part][ALL] for part in ("all", "reporting"))
    return (
        f"On all {whole['pages']} pages of the corpus ocrsvc's token F1 is {whole['f1']:.3f}, on the half kept for\n"
        f"reporting {reporting['f1']:.3f}; RapidOCR's with the same models is {RAPIDOCR_F1[ALL]:.3f} on all."
    )


def main() -> int:
    """Write the table and the sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS / "accuracy_ppocr.json")
    figures = json.loads(parser.parse_args().file.read_text("utf-8"))
    write_between(ROOT / "docs" / "performance.md", Path(__file__).name, table(figures))
    write_between(ROOT / "README.md", Path(__file__).name, sentence(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
