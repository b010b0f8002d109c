"""Compares measured settings: the Pareto frontier of throughput, latency and memory, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.tuning.settings_to_try import SettingValues

_HEADER: Final = f"{'pages/s':>8} {'p50 s':>7} {'p95 s':>7} {'peak MB':>8} {'failed':>6}  settings"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One choice of settings, and what it showed.

    Attributes:
        peak_bytes: Most resident memory of all processes together.
        failed: Requests that were not answered 200; such a choice is never chosen.
    """

    knobs: SettingValues
    pages_per_s: float
    p50_s: float
    p95_s: float
    peak_bytes: int
    failed: int = 0


def frontier(measured: Sequence[Measurement]) -> list[Measurement]:
    """Those that no other one beats in throughput, latency and memory at once, the quickest first."""
    sound = [one for one in measured if not one.failed]
    unbeaten = [one for one in sound if not any(_beats(other, one) for other in sound)]
    return sorted(unbeaten, key=lambda one: -one.pages_per_s)


def _beats(one: Measurement, other: Measurement) -> bool:
    merits = [(each.pages_per_s, -each.p95_s, -each.peak_bytes) for each in (one, other)]
    return merits[0] != merits[1] and all(mine >= theirs for mine, theirs in zip(*merits, strict=True))


def choose(measured: Sequence[Measurement], p95_s: float | None) -> Measurement | None:
    """The one with the highest throughput whose p95 keeps the goal; None when none does, or all failed requests."""
    kept = [one for one in frontier(measured) if p95_s is None or one.p95_s <= p95_s]
    return kept[0] if kept else None


def to_toml(chosen: Measurement, measured: Sequence[Measurement], how: str) -> str:
    """A settings file with the chosen values, and as a comment how they were measured and the frontier."""
    lines = [f"# Made by `ocrsvc tune`: {how}", "#", f"# {_HEADER}"]
    lines += [f"# {_row(one)}{'  <- chosen' if one is chosen else ''}" for one in frontier(measured)]
    lines.append("")
    for name, value in chosen.knobs.items():
        lines.append(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {format_value(value)}")
    return "\n".join(lines) + "\n"


def table(measured: Sequence[Measurement]) -> list[str]:
    """Everything that was tried, one line each, with a header."""
    return [_HEADER, *(_row(one) for one in measured)]


def _row(one: Measurement) -> str:
    figures = f"{one.pages_per_s:8.2f} {one.p50_s:7.2f} {one.p95_s:7.2f} {one.peak_bytes / 1e6:8.0f} {one.failed:6}"
    return f"{figures}  {show(one.knobs)}"


def show(knobs: SettingValues) -> str:
    """Settings in one line."""
    return " ".join(f"{name}={format_value(value)}" for name, value in knobs.items())


def format_value(value: float | str) -> str:
    """A setting as a variable holds it: whole numbers without a point or an exponent."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
