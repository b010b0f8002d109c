"""The pages that a report shows or names: where they come from, a little of what was read, and their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.batch.ledger.entries import CONFIDENCE_SCALE
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.report.page_table import PageTable
from ocrsvc.batch.report.pictures import Picture, PictureMaker
from ocrsvc.batch.report.record_lookup import RecordLookup
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import SourceFile

_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class ShownPage:
    """One page.

    Attributes:
        name: Of its file, as results call it; the page's number is behind it where the file has several.
        seconds, confidence, lines, attempts: As in the ledger, confidence in [0, 1].
        text: The beginning of what was read, in one line, or what was wrong; "" where the record is not there.
        picture: None where none is wanted.
    """

    name: str
    seconds: float
    confidence: float
    lines: int
    attempts: int
    text: str
    picture: Picture | None = None


class PageFinder:
    """Finds pages by their numbers in the plan; holds the files of one part.

    Args:
        store, plan, table: Of the run.
        pictures: Makes pictures.
    """

    def __init__(self, store: Store, plan: Plan, table: PageTable, pictures: PictureMaker) -> None:
        self._plan, self._table, self._pictures = plan, table, pictures
        self._records = RecordLookup(store, table)
        self._part = -1
        self._files: list[tuple[int, SourceFile]] = []

    def shown(self, pages: Iterable[int], *, with_pictures: bool = False) -> Mapping[int, ShownPage]:
        """These pages, by number; part after part, whatever their order. Raises DamagedLedger and OSError."""
        return {page: self._shown(page, with_picture=with_pictures) for page in sorted(set(pages))}

    def _shown(self, page: int, *, with_picture: bool) -> ShownPage:
        file, number = self._find(page)
        row = self._table.rows[page]
        return ShownPage(
            file.name if file.total == 1 else f"{file.name}, page {number}",
            float(row["seconds"]),
            float(row["confidence"]) / CONFIDENCE_SCALE,
            int(row["lines"]),
            int(row["attempts"]),
            _text_of(self._records.find(page, self._part, file.name, number)),
            self._pictures.make(file, number) if with_picture else None,
        )

    def _find(self, page: int) -> tuple[SourceFile, int]:
        part = self._plan.part_of(page)
        if part != self._part:
            self._part, self._files = part, self._plan.files_of(part)
        first, file = next(entry for entry in reversed(self._files) if entry[0] <= page)
        return file, file.pages[page - first]


def _text_of(record: Mapping[str, Any]) -> str:
    error = record.get("error")
    text = " ".join(str(error["detail"] if error else record.get("text", "")).split())
    return text if len(text) <= _TEXT else f"{text[:_TEXT].rstrip()}…"
