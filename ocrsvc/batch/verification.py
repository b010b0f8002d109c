"""Checks a run: that plan, ledger and output agree, and that every page is in the output once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.ledger import Ledger, unpack_finished
from ocrsvc.batch.ledger.ledger_log import FinishedPart
from ocrsvc.batch.outputs.source_listing import check_listed, is_listing
from ocrsvc.batch.page_record import record_head
from ocrsvc.batch.plan import Plan, read_plan
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.store.file_digest import check_file, pieces_of

_JSON_LINES: Final = re.compile(r"(.*/)?pages-\d+\.jsonl")
_PART_FILE: Final = re.compile(r"((?:.*/)?pages-)(\d+)\..*")
_NO_ERROR: Final = b'"error":null}'


@dataclass(slots=True)
class Verification:
    """What was found.

    Attributes:
        pages, done, failed: Of the plan, and those that were read or have failed.
        parts, finished: Of the plan, and those that are in the output with all that is known of them.
        problems: Sentences: where ledger and output do not agree.
    """

    pages: int = 0
    done: int = 0
    failed: int = 0
    parts: int = 0
    finished: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be read or written."""
        return self.finished == self.parts


def verify(store: Store) -> Verification:
    """Check the run that a store holds; reads the whole output once, and memory holds the ledger and one line.

    Raises FileNotFoundError where there is no run, DamagedLedger and OSError.
    """
    plan, said = read_plan(store), dict[int, list[bytes]]()

    def note_finished(part: int, payload: bytes) -> None:
        said.setdefault(part, []).append(payload)

    ledger = Ledger(store, plan, on_finished=note_finished)
    ledger.refresh()
    found = Verification(plan.totals.pages, parts=plan.parts)
    found.done = int((ledger.states == PageState.DONE).sum())
    found.failed = int((ledger.states == PageState.FAILED).sum())
    for part in range(plan.parts):
        if ledger.is_finished(part):
            found.finished += 1
            found.problems += _check_part(store, plan, ledger, part, said[part])
    formats = unpack_finished(next(iter(said.values()))[0]).files if said else ()
    found.problems += _foreign_files(store, plan, formats)
    return found


def _foreign_files(store: Store, plan: Plan, names: Iterable[str]) -> Iterator[str]:
    """The files of the output that are of no part: another run left them, and whoever reads all reads pages twice.

    Args:
        store, plan: Of the run.
        names: Of the files of any of its parts.
    """
    for match in filter(None, map(_PART_FILE.fullmatch, names)):
        for file in store.files(match[1]):
            other = _PART_FILE.fullmatch(file.name)
            if other is not None and int(other[2]) >= plan.parts:
                yield f"{file.name} is of no part of this run."


def _check_part(store: Store, plan: Plan, ledger: Ledger, part: int, said: list[bytes]) -> list[str]:
    """What is wrong with a part that is in the output. Of owners that wrote it at once, one is right."""
    known = ledger.known_part(part)
    counts = known.count(PageState.DONE), known.count(PageState.FAILED)
    written = [one for one in map(unpack_finished, said) if (one.done, one.failed) == counts]
    problems: list[str] = []
    for one in written:
        if not (problems := _check_files(store, one)):
            return [
                f"{name}: {problem}"
                for name in one.files
                for problem in _check_content(store, plan, ledger, part, name)
            ]
    return problems or [f"Part {part} holds {counts[0]} pages and {counts[1]} failures, and was not written so."]


def _check_content(store: Store, plan: Plan, ledger: Ledger, part: int, name: str) -> Iterator[str]:
    """What is wrong in a file of a part that is what was written."""
    if is_listing(name):
        yield from check_listed(store, name)
    elif _JSON_LINES.fullmatch(name):
        yield from _check_lines(store, plan, ledger, part, name)


def _check_files(store: Store, part: FinishedPart) -> list[str]:
    """What is wrong with the files of a part, by their sizes and digests."""
    found = (check_file(store, name, size, digest) for name, (size, digest) in part.files.items())
    return [problem for problem in found if problem]


def _check_lines(store: Store, plan: Plan, ledger: Ledger, part: int, name: str) -> Iterator[str]:
    """The first line of JSON Lines that is not the page that the plan has there, or not as the ledger says."""
    expected = _expected_lines(plan, ledger, part)
    for number, line in enumerate(_lines(pieces_of(store, name)), 1):
        page = next(expected, None)
        if page is None:
            yield f"line {number} and those behind it are of no page of the plan."
            return
        head, is_read = page
        if not line.startswith(head):
            yield f"line {number} is not {head.decode()}…, which is next in the plan."
            return
        if line.endswith(_NO_ERROR) is not is_read:
            yield f"line {number} and the ledger do not agree on whether the page was read."
            return
    if (page := next(expected, None)) is not None:
        yield f"{page[0].decode()}… and what is behind it in the plan are missing."


def _expected_lines(plan: Plan, ledger: Ledger, part: int) -> Iterator[tuple[bytes, bool]]:
    """How the line of each page begins, and whether it was read."""
    for first, file in plan.files_of(part):
        for at, number in enumerate(file.pages):
            yield record_head(file.name, number), bool(ledger.states[first + at] == PageState.DONE)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest
