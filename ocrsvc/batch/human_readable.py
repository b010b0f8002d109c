"""Text for people: counts, rates, durations and sizes, and untrusted text made safe for a terminal."""

import re
from collections.abc import Mapping
from typing import Final

# C0 controls except tab and line feed, DEL, C1 controls, and characters that change the writing direction.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_DURATIONS: Final = (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1))


def visible(text: str) -> str:
    r"""Escape control characters, for example as `\x1b`, so that a file name cannot send commands to a terminal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def count_of(number: int, name: str) -> str:
    """Format a count with its noun, such as "1 page" or "12,345 pages"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def rate_of(per_s: float) -> str:
    """Format a rate, with no decimals from 100, one from 1, and two below 1."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2f}"


def share_of(part: float, whole: float) -> str:
    """Format a percentage, rounded down, so that 100 % means all."""
    return f"{int(100 * part / whole) if whole else 100} %"


def duration_of(seconds: float) -> str:
    """Format a duration, such as "42 s", "3 min 5 s", "1 h 15 min", "2 d 4 h"."""
    whole = round(seconds)
    for unit, next_unit, size, next_size in _DURATIONS:
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit} {rest} {next_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def seconds_of(value: float) -> str:
    """Format the time that a page took, in milliseconds below one second."""
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 99.5 else duration_of(value)


def bytes_of(size: float) -> str:
    """Format a number of bytes, such as "12.3 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def failures_of(failed: Mapping[str, int], most: int = 3) -> str:
    """Format failures, such as "5 failed (broken_image 3, unsupported_image 2)", with the most frequent reasons."""
    if not failed:
        return "0 failed"
    first = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{reason} {count:,}" for reason, count in first[:most])
    return f"{sum(failed.values()):,} failed ({shown}{', …' if len(first) > most else ''})"
