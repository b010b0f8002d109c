"""The table that benchmarks/accuracy.py prints: one row per kind of page, the corpus's two halves side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.bars import RAPIDOCR_F1, min_f1
from bench.corpus import FEWEST_PAGES, FEWEST_TOKENS, HALVES, Corpus, Spaces, Tally

# Tallies by half (`None` is the whole corpus), then by kind.
Parts = Mapping[str | None, Mapping[str, Tally]]

FEW_MARK: Final = "few"
LEGEND: Final = (
    f"{FEW_MARK}: fewer than {FEWEST_PAGES} pages or {FEWEST_TOKENS} tokens; spaces: F1 of the spaces read, "
    "share of places that are right, and how many places there are; Rapid.: F1 of RapidOCR with its defaults"
)
_COLUMNS: Final = (
    f"{'kind':12} {'pages':>5} {'tokens':>6} {'F1':>7} {'least':>6} {'Rapid.':>6} {'prec.':>6} {'recall':>6} "
    f"{'CER':>6} {'beside Chinese':>21} {'between Latin':>21}"
)


def tally_parts(
    corpus: Corpus, texts: Sequence[str | None], half: str | None = None
) -> dict[str | None, dict[str, Tally]]:
    """Token and character counts of the corpus and, unless it is one half already, of each half."""
    halves = (None, *HALVES) if half is None else (None,)
    return {part: corpus.tally(texts, part) for part in halves}


def table(parts: Parts) -> Iterator[str]:
    """The lines of the table."""
    halves = [part for part in parts if part is not None]
    yield _COLUMNS + "".join(f" | {half + ': F1':>13} {'CER':>6}     " for half in halves)
    for kind, tally in sorted(parts[None].items()):
        yield _row(kind, tally) + "".join(f" | {_half_cell(parts[half].get(kind, Tally()))}" for half in halves)
    yield LEGEND


def as_dict(parts: Parts) -> dict[str, object]:
    """The tallies as JSON-ready dicts."""
    return {part or "all": {kind: tally.as_dict() for kind, tally in kinds.items()} for part, kinds in parts.items()}


def _row(kind: str, tally: Tally) -> str:
    few = f" {FEW_MARK}" if tally.is_few else "    "
    return (
        f"{kind:12} {tally.pages:5} {tally.wanted:6} {tally.f1:7.4f} {min_f1(kind):6.3f} {RAPIDOCR_F1[kind]:6.4f} "
        f"{tally.precision:6.4f} {tally.recall:6.4f} {_cer(tally)} "
        f"{_spaces(tally.mixed):>21} {_spaces(tally.latin):>21}{few}"
    )


def _half_cell(tally: Tally) -> str:
    few = FEW_MARK if tally.is_few else ""
    return f"{tally.f1:13.4f} {_cer(tally)} {few:4}"


def _cer(tally: Tally) -> str:
    return f"{tally.cer:6.4f}" if tally.length else f"{'':6}"


def _spaces(spaces: Spaces) -> str:
    if not spaces.places:
        return ""
    f1 = f"{spaces.f1:.3f}" if spaces.wanted or spaces.got else "-"
    return f"{f1} {spaces.share_right:.3f} of {spaces.places}"
