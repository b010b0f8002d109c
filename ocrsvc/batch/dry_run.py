"""Dry runs: count the files and pages that a run would read, and read a sample of them to measure the speed."""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from ocrsvc.batch.pages import PageGroup, PageReader, PageResult, SourceFile

SAMPLE_PAGES: Final = 24
"""Number of pages read for an estimate, drawn with equal probability from all pages."""
SAMPLE_S: Final = 60.0
"""Time after which no more pages of the sample are begun."""
_MAX_KINDS: Final = 30


class SourceCounts(NamedTuple):
    """Numbers of files, pages and bytes by kind (the file name's extension), and a random sample of the pages."""

    kinds: dict[str, tuple[int, int, int]]
    sample: list[PageGroup]

    @property
    def total(self) -> tuple[int, int, int]:
        """Total numbers of files, pages and bytes."""
        files, pages, size = (sum(kind[at] for kind in self.kinds.values()) for at in range(3))
        return files, pages, size


class Pace(NamedTuple):
    """The speed measured on a sample; `spread`: 95 % margin of error of the mean seconds per page, relative to it."""

    pages: int
    failed: int
    at_once: int
    pages_per_s: float
    spread: float

    def seconds_for(self, pages: int, machines: int = 1) -> float:
        """Estimated seconds for this number of pages on this number of machines like this one."""
        return pages / max(self.pages_per_s, 1e-9) / machines


def count_sources(files: Iterable[SourceFile]) -> SourceCounts:
    """Count files, pages and bytes by kind, most pages first; draw a sample, always the same for the same sources."""
    kinds: dict[str, tuple[int, int, int]] = {}
    sample, seen, chance = list[PageGroup](), 0, random.Random(1)  # noqa: S311  no secret
    for file in files:
        kind = PurePosixPath(file.name).suffix.lower() or "none"
        kind = kind if kind in kinds or len(kinds) < _MAX_KINDS else "other"
        counted, pages, size = kinds.get(kind, (0, 0, 0))
        kinds[kind] = counted + 1, pages + len(file.pages), size + file.size
        for number in file.pages:
            place = seen if seen < SAMPLE_PAGES else chance.randrange(seen + 1)
            if place < SAMPLE_PAGES:
                sample[place : place + 1] = [PageGroup(file, (number,), (seen,))]
            seen += 1
    return SourceCounts(dict(sorted(kinds.items(), key=lambda item: (-item[1][1], item[0]))), sample)


def measure_pace(
    reader: PageReader, sample: Sequence[PageGroup], clock: Callable[[], float] = time.monotonic
) -> Pace | None:
    """Read the sample with a started reader, and time it; None for an empty sample. Raises as the reader does."""
    if not sample:
        return None
    # Not timed: the first read also does one-time work, such as opening a model.
    list(reader.read(sample[0]))
    at_once, began_s = reader.at_once, clock()

    def read(group: PageGroup) -> list[PageResult]:
        return [] if clock() - began_s > SAMPLE_S else list(reader.read(group))

    with ThreadPoolExecutor(at_once) as pool:
        results = [result for found in pool.map(read, sample) for result in found]
    pages_per_s = len(results) / max(clock() - began_s, 1e-6)
    seconds, spread = [result.seconds for result in results], 1.0
    if len(seconds) > 1 and any(seconds):
        error = statistics.stdev(seconds) / math.sqrt(len(seconds))
        spread = min(1.0, 1.96 * error / statistics.fmean(seconds))
    return Pace(len(results), sum(bool(result.error) for result in results), at_once, pages_per_s, spread)
