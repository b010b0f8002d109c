"""Pages of the corpus, and accuracy counts by the corpus's own scorer."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ALL: Final = "ALL"
TUNING: Final = "tuning"
REPORTING: Final = "reporting"
HALVES: Final = (TUNING, REPORTING)
FEWEST_PAGES: Final = 10
FEWEST_TOKENS: Final = 1000


@dataclass(slots=True)
class Spaces:
    """Counts of spaces, and of positions between two characters where reading a space or none was right."""

    both: int = 0
    wanted: int = 0
    got: int = 0
    right: int = 0
    places: int = 0

    def add(self, counts: Sequence[int]) -> None:
        """Add the five counts of one page, in score.py's order."""
        self.both += counts[0]
        self.wanted += counts[1]
        self.got += counts[2]
        self.right += counts[3]
        self.places += counts[4]

    @property
    def f1(self) -> float:
        """F1 of the spaces read."""
        return 2 * self.both / max(1, self.wanted + self.got)

    @property
    def share_right(self) -> float:
        """Share of positions with a space exactly where the truth has one; 1 without positions."""
        return self.right / self.places if self.places else 1.0

    def as_dict(self) -> dict[str, float]:
        """The figures as a JSON-ready dict."""
        return {"f1": round(self.f1, 4), "right": round(self.share_right, 4), "places": self.places}


@dataclass(slots=True)
class Tally:
    """Token, character and space counts of a group of pages, summed as score.py does.

    Attributes:
        mixed: Spaces between a Chinese, Japanese or Korean character and another letter or digit.
        latin: Spaces between two letters or digits that are not Chinese, Japanese or Korean.
    """

    pages: int = 0
    hit: int = 0
    wanted: int = 0
    got: int = 0
    edits: int = 0
    length: int = 0
    failed: int = 0
    mixed: Spaces = field(default_factory=Spaces)
    latin: Spaces = field(default_factory=Spaces)

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
        """Character error rate: edits per character, in reading order."""
        return self.edits / max(1, self.length)

    @property
    def is_few(self) -> bool:
        """Whether the group is too small for reliable figures."""
        return self.pages < FEWEST_PAGES or self.wanted < FEWEST_TOKENS

    def as_dict(self) -> dict[str, object]:
        """The figures as a JSON-ready dict."""
        shares = {"f1": self.f1, "precision": self.precision, "recall": self.recall, "cer": self.cer}
        return {
            "pages": self.pages,
            "tokens": self.wanted,
            "few": self.is_few,
            "failed": self.failed,
            **{name: round(share, 4) for name, share in shares.items()},
            "characters": self.length,
            "spaces_mixed": self.mixed.as_dict(),
            "spaces_latin": self.latin.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class CorpusPage:
    """A page with known text."""

    file: Path
    kind: str
    truth: str
    row: Mapping[str, Any]

    @property
    def half(self) -> str:
        """The half that the page belongs to; see `half_of`."""
        return half_of(self.file.name)


def half_of(name: str) -> str:
    """The tuning or reporting half, by the lowest bit of the first byte of the SHA-256 of a page's file name.

    Constants are tuned on the tuning half; the reporting half shows the accuracy on unseen pages.
    """
    return HALVES[hashlib.sha256(name.encode()).digest()[0] & 1]


class Corpus:
    """The pages of a shared folder that have a known text, and their scorer.

    Args:
        shared: Folder with score.py and corpus/manifest.jsonl.
        kind: Take only pages of this kind; None takes all.
        every: Take only every n-th page.
        half: Take only pages of this half, TUNING or REPORTING; None takes both.
    """

    def __init__(self, shared: Path, kind: str | None = None, every: int = 1, half: str | None = None) -> None:
        manifest = shared / "corpus" / "manifest.jsonl"
        if not manifest.is_file():
            sys.exit(f"{manifest} is missing: set --shared to the folder with corpus/ and score.py.")
        self.score = load_scorer(shared / "score.py")
        rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines() if line.strip()]
        wanted = [row for row in rows if self.score.truth_of(row) and kind in (None, row["kind"])]
        pages = [
            CorpusPage(manifest.parent / row["file"], row["kind"], self.score.truth_of(row), row) for row in wanted
        ]
        self.pages = [page for page in pages if half in (None, page.half)][::every]

    def tally(self, texts: Iterable[str | None], half: str | None = None) -> dict[str, Tally]:
        """Tallies by kind, and one for ALL.

        Args:
            texts: One text per page, None where reading failed.
            half: Count only the pages of this half; None counts all.
        """
        tallies: dict[str, Tally] = {}
        for page, text in zip(self.pages, texts, strict=True):
            if half in (None, page.half):
                for group in (ALL, page.kind):
                    self._add(tallies.setdefault(group, Tally()), page, text or "")
                    tallies[group].failed += text is None
        return tallies

    def hits(self, page: CorpusPage, text: str) -> int:
        """Number of tokens of the page that were read."""
        return int(self.score.f1(page.truth, text)[0])

    def _add(self, tally: Tally, page: CorpusPage, text: str) -> None:
        """Add a page; partly known pages count for recall only, pages without an order count no edits or spaces."""
        hit, wanted, got = self.score.f1(page.truth, text)
        partial = page.row.get("coverage") == "partial"
        if not partial and page.row.get("order") != "unreliable":
            edits, length = self.score.edits(page.truth, text)
            tally.edits += edits
            tally.length += length
            spaces = self.score.spaces(page.truth, text)
            tally.mixed.add(spaces["mixed"])
            tally.latin.add(spaces["latin"])
        tally.pages += 1
        tally.hit += hit
        tally.wanted += wanted
        tally.got += hit if partial else got


def load_scorer(file: Path) -> ModuleType:
    """Load the scorer from its file as a module."""
    spec = importlib.util.spec_from_file_location("score", file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
