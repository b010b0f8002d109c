"""What a run would read and what that would cost: files and pages are counted, and a few pages are read."""

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
"""Read for an estimate; any page is as likely to be among them."""
SAMPLE_S: Final = 60.0
"""After which no more of them are begun."""
_MOST_KINDS: Final = 30


class SourceCounts(NamedTuple):
    """What sources hold: files, pages and bytes by kind (the end of a file's name), and a sample of single pages."""

    kinds: dict[str, tuple[int, int, int]]
    sample: list[PageGroup]

    @property
    def total(self) -> tuple[int, int, int]:
        """Files, pages and bytes."""
        files, pages, size = (sum(kind[at] for kind in self.kinds.values()) for at in range(3))
        return files, pages, size


class Pace(NamedTuple):
    """What reading a sample showed; `spread` is 1.96 standard errors of a page's seconds, over their mean."""

    pages: int
    failed: int
    at_once: int
    pages_per_s: float
    spread: float

    def seconds_for(self, pages: int, machines: int = 1) -> float:
        """On this number of machines such as this one."""
        return pages / max(self.pages_per_s, 1e-9) / machines


def count_sources(files: Iterable[SourceFile]) -> SourceCounts:
    """Count them, kinds with most pages first; the same sources give the same sample."""
    kinds: dict[str, tuple[int, int, int]] = {}
    sample, seen, chance = list[PageGroup](), 0, random.Random(1)  # noqa: S311  no secret
    for file in files:
        kind = PurePosixPath(file.name).suffix.lower() or "none"
        kind = kind if kind in kinds or len(kinds) < _MOST_KINDS else "other"
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
    seconds, spread = [result.seconds for result in results], 1.0
    if len(seconds) > 1 and any(seconds):
        error = statistics.stdev(seconds) / math.sqrt(len(seconds))
        spread = min(1.0, 1.96 * error / statistics.fmean(seconds))
    return Pace(len(results), sum(bool(result.error) for result in results), at_once, pages_per_s, spread)
