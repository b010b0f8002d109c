"""A log as objects: each holds a run of its bytes, and is named after where they begin and end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

_NAME: Final = re.compile(r"(\d{14})-(\d{14})")
MERGED_TOGETHER: Final = 16
"""So many small chunks become one, and so many of those one again."""

MERGED_BYTES: Final = 1024 * 1024
"""Chunks that are larger together stay as they are: small ones are what listings pay for."""


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """A run of a log's bytes: begin and end, from the log's beginning."""

    begin: int
    end: int

    @property
    def name(self) -> str:
        """Of its object, below the log's name; names sort as their bytes lie."""
        return f"{self.begin:014d}-{self.end:014d}"

    @classmethod
    def of(cls, name: str) -> Self | None:
        """The chunk that an object's name says; None if it is another kind of object."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2])) if match else None

    @classmethod
    def around(cls, chunks: Sequence[Chunk]) -> Self:
        """What these hold together, which lie behind one another."""
        return cls(chunks[0].begin, chunks[-1].end)


def covering(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks that hold a log from its beginning, one behind the other, up to the first byte that none holds.

    Chunks may overlap: after a merge those that were merged are removed, and who was to do that may have died. The
    bytes of a log are the same in each.
    """
    at, best = 0, None
    for chunk in sorted(chunks):
        if chunk.begin > at:
            if best is None or best.end < chunk.begin:
                break
            yield best
            at, best = best.end, None
        if chunk.end > at and (best is None or chunk.end > best.end):
            best = chunk
    if best is not None:
        yield best


class MergePlan:
    """Says which chunks of a growing log are to be merged, so that it has few objects; for one writer.

    Every byte of a log with small commits is written about three times, and a log of n commits has about
    30 + n / 256 objects.
    """

    def __init__(self) -> None:
        self._levels: list[list[Chunk]] = [[]]

    def add(self, chunk: Chunk) -> None:
        """Another chunk lies at the log's end."""
        self._levels[0].append(chunk)

    def due(self) -> Sequence[Chunk]:
        """Chunks that are to become one now; none most of the time."""
        for level in self._levels:
            if len(level) >= MERGED_TOGETHER:
                if level[-1].end - level[0].begin <= MERGED_BYTES:
                    return tuple(level)
                level.clear()
        return ()

    def merged(self, chunks: Sequence[Chunk]) -> None:
        """These have become one."""
        for number, level in enumerate(self._levels):
            if level and level[0] == chunks[0]:
                del level[: len(chunks)]
                if number + 1 == len(self._levels):
                    self._levels.append([])
                self._levels[number + 1].append(Chunk.around(chunks))
                return


def small_runs(chunks: Iterable[Chunk]) -> Iterator[Sequence[Chunk]]:
    """Runs of chunks that lie behind one another and are small enough to be one."""
    run: list[Chunk] = []
    for chunk in covering(chunks):
        if run and chunk.end - run[0].begin > MERGED_BYTES:
            if len(run) > 1:
                yield tuple(run)
            run = []
        run.append(chunk)
    if len(run) > 1:
        yield tuple(run)
