"""How much of a remote model's text reaches the local engine's lines, if the model's text is perfect.

    python benchmarks/remote_alignment.py [--pages 100] [--seed 1] [--shared FOLDER] [--out FILE]

Reads corpus pages with ppocr, and aligns each page's true text with its lines as the mode `lines` of the engine
`remote` does: once with the true lines, and once with six lines joined to one, as models join paragraphs. Then the same
with 30 % of the local characters replaced. Prints character error rates of whole pages (edit distance to the truth
divided by its length, white space collapsed), which include lines that were not found or are in another order. The
result is the best that alignment can reach, not a model's accuracy.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from bench.machine import print_machine
from bench.results import write_result
from rapidfuzz.distance import Levenshtein

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import SHARED, page_handle

from ocrsvc.engines.remote.alignment import align
from ocrsvc.results import Image, Line, Page, ReadTask

JOINED_LINES = 6
WRONG_SHARE = 0.3


def with_errors(line: Line) -> Line:
    """The line with 30 % of its characters replaced."""
    characters = (
        random.choice("abcdefgh") if not character.isspace() and random.random() < WRONG_SHARE else character
        for character in line.text
    )
    return replace(line, text="".join(characters))


def distance(lines: Sequence[Line], truth: str) -> int:
    """Edit distance of the lines' text to the truth."""
    return int(Levenshtein.distance(" ".join(" ".join(line.text for line in lines).split()), truth))


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    random.seed(args.seed)
    print_machine()
    corpus = args.shared / "corpus"
    rows = [json.loads(row) for row in (corpus / "manifest.jsonl").read_text("utf-8").splitlines()]
    rows = random.sample([row for row in rows if row.get("text")], args.pages)
    wrong, characters, longest_s = Counter[str](), 0, 0.0
    with page_handle() as handle:
        for row in rows:
            page = handle.read([ReadTask(Image(np.asarray(cv2.imread(str(corpus / row["file"])), np.uint8), "png"))])[0]
            assert isinstance(page, Page), page
            true_lines = row["text"].split("\n")
            joined = [" ".join(true_lines[at : at + JOINED_LINES]) for at in range(0, len(true_lines), JOINED_LINES)]
            truth = " ".join(row["text"].split())
            characters += len(truth)
            for name, lines in (("local", page.lines), ("worse", tuple(map(with_errors, page.lines)))):
                wrong[name] += distance(lines, truth)
                for kind, texts in (("lines", true_lines), ("joined", joined)):
                    began_s = time.perf_counter()
                    wrong[f"{name}_{kind}"] += distance(align(lines, texts), truth)
                    longest_s = max(longest_s, time.perf_counter() - began_s)
    rates = {name: round(count / characters, 4) for name, count in wrong.items()}
    figures: dict[str, object] = {
        "pages": len(rows),
        "characters": characters,
        "longest_s": round(longest_s, 3),
        **rates,
    }
    print(figures)
    write_result("remote_alignment", figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
