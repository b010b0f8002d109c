"""What a run would read and what that would cost: files and pages are counted, and a few pages are read."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from ocrsvc.batch.pages import PageGroup, PageReader, PageResult, SourceFile

SAMPLE_PAGES: Final = 24
"""Read for an estimate; any page is as likely to be among them."""
SAMPLE_S: Final = 60.0
"""After which no more of them are begun."""
_SEED: Final = 1
_MOST_KINDS: Final = 30
_OTHER: Final = "other"


@dataclass(slots=True)
class KindCounts:
    """Files of one kind, their pages that would be read, and the files' bytes."""

    files: int = 0
    pages: int = 0
    bytes: int = 0

    def add(self, file: SourceFile) -> None:
        """One more."""
        self.files += 1
        self.pages += len(file.pages)
        self.bytes += file.size


@dataclass(slots=True)
class SourceCounts:
    """What sources hold, by kind (the end of a file's name), and a sample of single pages."""

    kinds: dict[str, KindCounts] = field(default_factory=dict)
    total: KindCounts = field(default_factory=KindCounts)
    sample: list[PageGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pace:
    """What reading a sample showed; `spread` is 1.96 standard errors of a page's seconds, over their mean."""

    pages: int
    failed: int
    at_once: int
    pages_per_s: float
    spread: float

    def seconds_for(self, pages: int, machines: int = 1) -> float:
        """On so many machines such as this."""
        return pages / max(self.pages_per_s, 1e-9) / machines


def count_sources(files: Iterable[SourceFile]) -> SourceCounts:
    """Count them; memory holds the counts and the sample."""
    counts, chance = SourceCounts(), random.Random(_SEED)  # noqa: S311  no secret: the same sources give the same sample
    for file in files:
        kind = PurePosixPath(file.name).suffix.lower() or "none"
        if len(counts.kinds) >= _MOST_KINDS and kind not in counts.kinds:
            kind = _OTHER
        counts.kinds.setdefault(kind, KindCounts()).add(file)
        for seen, number in enumerate(file.pages, counts.total.pages):
            place = seen if seen < SAMPLE_PAGES else chance.randrange(seen + 1)
            if place < SAMPLE_PAGES:
                counts.sample[place : place + 1] = [PageGroup(file, (number,), (seen,))]
        counts.total.add(file)
    return counts


def measure_pace(
    reader: PageReader, sample: Sequence[PageGroup], clock: Callable[[], float] = time.monotonic
) -> Pace | None:
    """Read the sample with a reader that is started; None where there is nothing to read. Raises as it does."""
    if not sample:
        return None
    # What is opened once, such as a model, is not part of a long run's pace.
    list(reader.read(sample[0]))
    at_once, began_s = reader.at_once, clock()

    def read(group: PageGroup) -> list[PageResult]:
        return [] if clock() - began_s > SAMPLE_S else list(reader.read(group))

    with ThreadPoolExecutor(at_once) as pool:
        results = [result for found in pool.map(read, sample) for result in found]
    pages_per_s = len(results) / max(clock() - began_s, 1e-6)
    seconds, failed = [result.seconds for result in results], sum(bool(result.error) for result in results)
    return Pace(len(results), failed, at_once, pages_per_s, _spread(seconds))


def _spread(seconds: Sequence[float]) -> float:
    if len(seconds) < 2 or not any(seconds):
        return 1.0
    error = statistics.stdev(seconds) / math.sqrt(len(seconds))
    return min(1.0, 1.96 * error / statistics.fmean(seconds))


def kinds_by_pages(counts: SourceCounts) -> dict[str, KindCounts]:
    """The kinds, those with most pages first."""
    return dict(sorted(counts.kinds.items(), key=lambda item: (-item[1].pages, item[0])))
