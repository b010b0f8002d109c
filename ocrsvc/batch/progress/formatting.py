"""Formats counts, rates, times and sizes of a run for people."""

from __future__ import annotations

from collections.abc import Mapping


def count_of(number: int, name: str) -> str:
    """Such as "1 page" and "12,345 pages"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def rate_of(per_s: float) -> str:
    """A rate with as many digits as say something."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2f}"


def share_of(part: float, whole: float) -> str:
    """Per cent, rounded down, so that 100 % means all."""
    return f"{int(100 * part / whole) if whole else 100} %"


def duration_of(seconds: float) -> str:
    """Such as "42 s", "3 min 5 s", "1 h 15 min", "2 d 4 h"."""
    whole = round(seconds)
    for unit, next_unit, size, next_size in (
        ("d", "h", 86400, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit} {rest} {next_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def bytes_of(size: float) -> str:
    """Such as "12.3 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def failures_of(failed: Mapping[str, int], most: int = 3) -> str:
    """Such as "5 failed (broken_image 3, unsupported_image 2)"; the most frequent reasons."""
    total = sum(failed.values())
    if not total:
        return "0 failed"
    first = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    said = ", ".join(f"{reason} {count:,}" for reason, count in first[:most])
    return f"{total:,} failed ({said}{', …' if len(first) > most else ''})"
