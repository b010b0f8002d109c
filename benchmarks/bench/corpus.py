"""Pages of the corpus, and how well they were read, by the corpus's own scorer."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ALL = "ALL"


@dataclass(slots=True)
class Tally:
    """Token and character counts of a group of pages, as score.py adds them up."""

    pages: int = 0
    hit: int = 0
    wanted: int = 0
    got: int = 0
    edits: int = 0
    length: int = 0
    failed: int = 0

    @property
    def precision(self) -> float:
        """Share of the tokens read that are on the page."""
        return self.hit / max(1, self.got)

    @property
    def recall(self) -> float:
        """Share of the tokens on the page that were read."""
        return self.hit / max(1, self.wanted)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.precision * self.recall / max(1e-9, self.precision + self.recall)

    @property
    def cer(self) -> float:
        """Edits for each character in reading order."""
        return self.edits / max(1, self.length)

    def as_dict(self) -> dict[str, float]:
        """Ready to become JSON."""
        shares = {"f1": self.f1, "precision": self.precision, "recall": self.recall, "cer": self.cer}
        return {"pages": self.pages, "failed": self.failed} | {name: round(share, 4) for name, share in shares.items()}


@dataclass(frozen=True, slots=True)
class CorpusPage:
    """One page with known text."""

    file: Path
    kind: str
    truth: str
    row: Mapping[str, Any]


class Corpus:
    """The pages of a shared folder that have truth, and their scorer.

    Args:
        shared: Folder with score.py and corpus/manifest.jsonl.
        kind: Only pages of this kind; None takes all.
        every: Only every n-th page.
    """

    def __init__(self, shared: Path, kind: str | None = None, every: int = 1) -> None:
        manifest = shared / "corpus" / "manifest.jsonl"
        if not manifest.is_file():
            sys.exit(f"{manifest} is missing: name the folder that holds corpus/ and score.py with --shared.")
        self.score = load_scorer(shared / "score.py")
        rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines() if line.strip()]
        wanted = [row for row in rows if self.score.truth_of(row) and kind in (None, row["kind"])]
        self.pages = [
            CorpusPage(manifest.parent / row["file"], row["kind"], self.score.truth_of(row), row)
            for row in wanted[::every]
        ]

    def tally(self, texts: Iterable[str | None]) -> dict[str, Tally]:
        """Counts for ALL and for each kind; `texts` holds one text for each page, None where reading failed."""
        tallies: dict[str, Tally] = {}
        for page, text in zip(self.pages, texts, strict=True):
            for group in (ALL, page.kind):
                self._add(tallies.setdefault(group, Tally()), page, text)
        return tallies

    def _add(self, tally: Tally, page: CorpusPage, text: str | None) -> None:
        """What is partly known counts for recall only, and what has no known order counts for no edits."""
        hit, wanted, got = self.score.f1(page.truth, text or "")
        partial = page.row.get("coverage") == "partial"
        if not partial and page.row.get("order") != "unreliable":
            edits, length = self.score.edits(page.truth, text or "")
            tally.edits += edits
            tally.length += length
        tally.pages += 1
        tally.hit += hit
        tally.wanted += wanted
        tally.got += hit if partial else got
        tally.failed += text is None


def load_scorer(file: Path) -> ModuleType:
    """The scorer as a module, loaded by its path."""
    spec = importlib.util.spec_from_file_location("score", file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
