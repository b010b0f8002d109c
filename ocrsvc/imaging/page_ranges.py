"""Parses page ranges such as "1-3,7" and chooses a document's pages by them."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from ocrsvc.errors import BadOption

Ranges = tuple[tuple[int, int | None], ...]  # first and last page of each range, from 1; None is the document's last

ALL: Final[Ranges] = ((1, None),)
ACCEPTED: Final = "page numbers and ranges from 1, such as 1-3,7 or 5-"

_NUMBER: Final = "[1-9][0-9]{0,8}"
_MAX_COMMAS: Final = 100
# Two adjacent `\s*` would take quadratic time for a megabyte of blanks.
_RANGE: Final = re.compile(rf"\s*({_NUMBER})\s*(?:(-)\s*(?:({_NUMBER})\s*)?)?")


def parse_ranges(text: str) -> Ranges:
    """Parse ranges such as "1-3,7" or "5-". Raises ValueError."""
    ranges: list[tuple[int, int | None]] = []
    for match in map(_RANGE.fullmatch, text.split(",", _MAX_COMMAS)):
        first, dash, last = match.groups() if match else ("0", None, None)
        ranges.append((int(first), int(last or 0) or None if dash else int(first)))
    if any(not 0 < first <= (last or first) for first, last in ranges):
        raise ValueError(text)
    return tuple(ranges)


def format_ranges(numbers: Iterable[int]) -> list[str]:
    """Format ascending page numbers as ranges, such as ["1-3", "7"]."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = ((run[0], run[-1]) for run in ([number for _, number in run] for _, run in runs))
    return [str(first) if first == last else f"{first}-{last}" for first, last in ends]


def choose(ranges: Ranges, count: int) -> Sequence[int]:
    """The numbers of the chosen pages of a document with `count` pages, sorted, without duplicates."""
    if ranges == ALL:
        return range(1, count + 1)
    numbers: list[int] = []
    # Start each range after the end of the previous one: a hundred ranges may name the same million pages.
    for first, last in sorted((first, min(count, last or count)) for first, last in ranges):
        numbers += range(max(first, numbers[-1] + 1 if numbers else 1), last + 1)
    return numbers


def no_such_pages(kind: str, count: int) -> BadOption:
    """The error for a document ("PDF", "image") with `count` pages and none of the requested ones."""
    return BadOption(f"None of the requested pages exists: the {kind} has {count} {'page' if count == 1 else 'pages'}.")
