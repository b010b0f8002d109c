"""The plan of a run: every file with its pages, in the order of the output, divided into parts.

A part is a run of whole files. It is what one owner leases, and what is written to the output at once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.batch.ledger.frames import read_frames, to_frame
from ocrsvc.batch.run_description import RUN_FILE, RunDescription
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import DamagedLedger

PLANS: Final = "_ocrsvc/plan-"
_INDEX: Final = ".index"
_FILES, _TOTALS, _PARTS = 1, 2, 3
_PART: Final = np.dtype([("offset", "<u8"), ("size", "<u4"), ("files", "<u4"), ("first", "<u8"), ("pages", "<u4")])


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """What a plan holds: files, pages to be read, bytes of the files, and a digest of all of it."""

    files: int
    pages: int
    bytes: int
    digest: str


class Plan:
    """A plan that is written; holds the index in memory, and reads the files of a part when they are asked for.

    Attributes:
        name: Of its file in the store.
        totals: What it holds.
        parts: How many parts it has.
    """

    def __init__(self, store: Store, name: str, totals: PlanTotals, index: np.ndarray) -> None:
        self._store = store
        self._index, self._firsts = index, np.ascontiguousarray(index["first"])
        self.name, self.totals = name, totals
        self.parts = len(index)

    def pages_of(self, part: int) -> range:
        """The numbers in the plan of a part's pages, from 0."""
        first = int(self._index[part]["first"])
        return range(first, first + int(self._index[part]["pages"]))

    def all_files(self) -> Iterator[SourceFile]:
        """Every file, in the order of the output; memory holds those of one part. Raises DamagedLedger."""
        for part in range(self.parts):
            for _, file in self.files_of(part):
                yield file

    def part_of(self, page: int) -> int:
        """The part that has a page."""
        return int(np.searchsorted(self._firsts, page, side="right")) - 1

    def file_count(self, part: int) -> int:
        """How many files a part has."""
        return int(self._index[part]["files"])

    def frame_of(self, part: int) -> bytes:
        """The frame of a part, as it is written. Raises DamagedLedger."""
        row = self._index[part]
        try:
            return self._store.read(self.name, int(row["offset"]), int(row["size"]))
        except FileNotFoundError as error:
            raise _damaged(self._store) from error

    def files_of(self, part: int) -> list[tuple[int, SourceFile]]:
        """The files of a part, each with the number in the plan of its first page. Raises DamagedLedger."""
        row = self._index[part]
        frames = list(read_frames(self.frame_of(part)))
        if len(frames) != 1:
            raise _damaged(self._store)
        files, page = [], int(row["first"])
        for values in orjson.loads(zlib.decompress(frames[0][1])):
            file = _from_values(values)
            files.append((page, file))
            page += len(file.pages)
        return files


def write_plan(store: Store, files: Iterable[SourceFile], part_pages: int, after: Plan | None = None) -> Plan:
    """Write the plan of these files, under a name of its own, and give it back; memory holds one part of it.

    Two processes that begin the same run each write one, and the run's description names the one that counts.

    Args:
        store: Where to.
        files: In the order of the output.
        part_pages: A part ends with the file that brings it to so many pages.
        after: A plan whose parts are those of the new one, too, before those of the files.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    digest, size = hashlib.sha256(), 0
    offset = first = 0
    name = f"{PLANS}{secrets.token_hex(8)}"
    with store.writing(name) as output:
        for frame, count, pages, bytes_ in chain(_frames_of(after), _frames(files, part_pages)):
            rows.append((offset, len(frame), count, first, pages))
            output.write(frame)
            digest.update(frame)
            offset, first, size = offset + len(frame), first + pages, size + bytes_
    index = np.array(rows, _PART)
    totals = PlanTotals(int(index["files"].sum()), first, size, digest.hexdigest())
    with store.writing(name + _INDEX) as output:
        values = [totals.files, totals.pages, totals.bytes, totals.digest]
        output.write(to_frame(_TOTALS, orjson.dumps(values)) + to_frame(_PARTS, index.tobytes()))
    return Plan(store, name, totals, index)


def _frames(files: Iterable[SourceFile], part_pages: int) -> Iterator[tuple[bytes, int, int, int]]:
    """The frame of each part, with its files, pages and bytes."""
    for part in _parts(files, part_pages):
        frame = to_frame(_FILES, zlib.compress(orjson.dumps([_to_values(file) for file in part]), 6))
        yield frame, len(part), sum(len(file.pages) for file in part), sum(file.size for file in part)


def _frames_of(plan: Plan | None) -> Iterator[tuple[bytes, int, int, int]]:
    """The frames of a plan as they are written; the bytes of all its files come with the first."""
    size = plan.totals.bytes if plan else 0
    for part in range(plan.parts if plan else 0):
        assert plan is not None, "it has parts"
        yield plan.frame_of(part), plan.file_count(part), len(plan.pages_of(part)), size
        size = 0


def read_plan(store: Store) -> Plan:
    """The plan of the run that a store holds. Raises FileNotFoundError where there is none, and DamagedLedger."""
    described = RunDescription.read(store)
    if described is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{store.address}/{RUN_FILE}")
    try:
        found = {kind: payload for kind, payload, _ in read_frames(store.read(described.plan_file + _INDEX))}
    except FileNotFoundError as error:
        raise _damaged(store) from error
    if found.keys() != {_TOTALS, _PARTS}:
        raise _damaged(store)
    plan = Plan(
        store, described.plan_file, PlanTotals(*orjson.loads(found[_TOTALS])), np.frombuffer(found[_PARTS], _PART)
    )
    if plan.totals.digest != described.plan:
        raise _damaged(store)
    return plan


def plan_names(store: Store) -> set[str]:
    """The plans that a store holds, also those that no run names. Raises OSError."""
    return {file.name.removesuffix(_INDEX) for file in store.files(PLANS)}


def remove_plans(store: Store, names: Iterable[str]) -> None:
    """Remove plans by their names; nothing happens for those that are not there. Raises OSError."""
    for name in names:
        store.delete(name)
        store.delete(name + _INDEX)


def _parts(files: Iterable[SourceFile], part_pages: int) -> Iterator[list[SourceFile]]:
    part: list[SourceFile] = []
    pages = 0
    for file in files:
        part.append(file)
        pages += len(file.pages)
        if pages >= part_pages:
            yield part
            part, pages = [], 0
    if part:
        yield part


def _to_values(file: SourceFile) -> list[object]:
    """A file as a list: what can be left out is null."""
    locator = None if file.locator == file.name else file.locator
    pages = None if file.pages == range(1, file.total + 1) else list(file.pages)
    return [file.name, locator, file.version, file.size, file.total, pages]


def _from_values(values: list[Any]) -> SourceFile:
    name, locator, version, size, total, pages = values
    numbers = range(1, total + 1) if pages is None else tuple(pages)
    return SourceFile(name, locator or name, version, size, total, numbers)


def _damaged(store: Store) -> DamagedLedger:
    return DamagedLedger(
        f"The plan in {store.address} is damaged.", "Take another destination, or remove its folder _ocrsvc."
    )
