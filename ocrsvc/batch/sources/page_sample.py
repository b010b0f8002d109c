"""Chooses a sample of the pages by their hashes: the same pages for the same names and the same seed, in any order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import numpy as np

from ocrsvc.batch.sources.file_records import from_record, to_record
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.record_sort import RecordFile
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import BadOption

_WHOLE: Final = 1 << 64
_ANSWER: Final = re.compile(r"(?P<share>\d{1,3}(\.\d{1,9})?)%|(?P<count>\d{1,12})")
_LEAST_BUFFER: Final = 100_000


@dataclass(frozen=True, slots=True)
class Sample:
    """How many pages to take, or which share of them; one is None."""

    count: int | None
    share: float | None

    @classmethod
    def of(cls, text: str) -> Sample:
        """What --sample says, such as "1000" or "2.5%". Raises BadOption."""
        match = _ANSWER.fullmatch(text)
        share = float(match["share"]) / 100 if match and match["share"] else None
        if match is None or (share or 0) > 1 or not (share or int(match["count"] or 0)):
            raise BadOption(f"--sample is {text!r}: accepted are a number of pages from 1, or a share such as 2.5%.")
        return cls(int(match["count"]) if share is None else None, share)


def sampled(files: Iterable[SourceFile], sample: Sample, seed: int, counts: PlanningCounts) -> Iterator[SourceFile]:
    """The files with those of their pages that are in the sample, in the same order, without those that have none.

    A number of pages is known to be reached when all files were seen: they wait in a temporary file.

    Args:
        files: All of them.
        sample: How many.
        seed: Which.
        counts: Told of the pages that are left out.
    """
    if sample.share is not None:
        yield from _below(files, round(sample.share * _WHOLE), seed, counts)
        return
    smallest = _SmallestHashes(sample.count or 0)
    with RecordFile() as kept:
        for file in files:
            kept.write(to_record(file))
            for number in file.pages:
                smallest.add(_hash(file.name, number, seed))
        yield from _below(map(from_record, kept.read()), smallest.limit(), seed, counts)


def _below(files: Iterable[SourceFile], limit: int, seed: int, counts: PlanningCounts) -> Iterator[SourceFile]:
    for file in files:
        numbers = tuple(number for number in file.pages if _hash(file.name, number, seed) < limit)
        counts.not_sampled += len(file.pages) - len(numbers)
        if numbers:
            yield file if len(numbers) == len(file.pages) else replace(file, pages=numbers)


def _hash(name: str, number: int, seed: int) -> int:
    digest = blake2b(f"{seed} {number} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class _SmallestHashes:
    """The smallest so many of all hashes; memory holds twice as many."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._hashes = np.empty(2 * count + _LEAST_BUFFER, np.uint64)
        self._filled = 0

    def add(self, value: int) -> None:
        self._hashes[self._filled] = value
        self._filled += 1
        if self._filled == len(self._hashes):
            self._hashes[: self._count] = np.partition(self._hashes, self._count)[: self._count]
            self._filled = self._count

    def limit(self) -> int:
        """Above the hashes that are in the sample, and not above any other."""
        hashes = np.sort(self._hashes[: self._filled])
        return _WHOLE if self._filled <= self._count else int(hashes[self._count])
