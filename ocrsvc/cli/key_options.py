"""The options of a key on the command line, and the entry that they make."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, get_args

import click

from ocrsvc.access.api_keys import SCOPES, KeyEntry, KeyLimits, KeyPriority
from ocrsvc.cli.options import Number, gathered, option
from ocrsvc.errors import OperatorError
from ocrsvc.registry import adapters

NATIVE: Final = "api"
"""The native API, among the names of adapters."""

_ALL: Final = "all"
_NONE: Final = "none"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST: Final = 10**12
_LONGEST_S: Final = 10 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What the options say; None or nothing leaves a new key its defaults, and another key what it has."""

    scope: Sequence[str]
    adapter: Sequence[str]
    requests_per_s: float | str | None
    concurrency: int | str | None
    pages_a_day: int | str | None
    pages_a_month: int | str | None
    priority: KeyPriority | None
    may_cache: bool | None
    expires: str | None

    def apply(self, entry: KeyEntry, now_s: float) -> KeyEntry:
        """The entry with what they change of it. Raises OperatorError."""
        limits: dict[str, Any] = {
            limit.name: None if number == _NONE else number
            for limit in fields(KeyLimits)
            if (number := getattr(self, limit.name)) is not None
        }
        given: dict[str, Any] = {"limits": replace(entry.limits, **limits)}
        if self.scope:
            given["scopes"] = frozenset(self.scope)
        if self.adapter:
            given["adapters"] = _adapters_of(self.adapter)
        if self.priority:
            given["priority"] = self.priority
        if self.may_cache is not None:
            given["may_cache"] = self.may_cache
        if self.expires:
            given["expires_at"] = _end_of(self.expires, now_s)
        return replace(entry, **given)


def _adapters_of(names: Sequence[str]) -> frozenset[str] | None:
    """The formats of these names; None for all. Raises OperatorError."""
    known = (NATIVE, *adapters())
    if wrong := set(names) - {*known, _ALL}:
        raise OperatorError(f"--adapter is {min(wrong)[:40]!r}.", f"Accepted is {_ALL}, {', '.join(known)}.")
    return None if _ALL in names else frozenset(names)


def _end_of(text: str, now_s: float) -> float | None:
    """When a key ends, in Unix seconds. Raises OperatorError."""
    if text == "never":
        return None
    try:
        seconds = _seconds_of(text)
        end_s = _moment_of(text) if seconds is None else now_s + seconds
    except ValueError as error:
        raise OperatorError(f"--expires is {text[:40]!r}.", "Accepted is 90d, 12h, 2027-01-31, or never.") from error
    if end_s <= now_s:
        raise OperatorError(f"--expires is {text[:40]!r}, which is over.", "Name a time that is to come.")
    return end_s


def _moment_of(text: str) -> float:
    """Unix seconds of a date, at its beginning, by UTC unless it says otherwise. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds_of(text: str) -> float | None:
    """Seconds of "90s", "30m", "12h" or "7d"; None for what is none, or longer than ten years."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else math.inf
    return float(seconds) if seconds <= _LONGEST_S else None


class _Duration(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds. Raises BadParameter."""
        if isinstance(value, float):
            return value
        if (seconds := _seconds_of(value)) is None:
            self.fail(f"{value!r} is not 90s, 30m, 12h or 7d, up to ten years.", param, ctx)
        return seconds


DURATION: Final = _Duration()

_most: Final = partial(option, section="Limits", metavar="N|none")
_COUNT: Final = Number(int, 1, _MOST, "a whole number above 0, or none", _NONE)

key_options: Final = gathered(
    "change",
    KeyChange,
    option(
        "--scope", multiple=True, type=click.Choice(SCOPES), help="What it is for; may be repeated; read by default."
    ),
    option(
        "--adapter",
        multiple=True,
        metavar="FORMAT",
        help="A format it is for, by its name in OCRSVC_DIALECTS, or api for the native API; may be repeated; all by "
        "default.",
    ),
    option("--priority", type=click.Choice(get_args(KeyPriority)), help="Its highest; interactive by default."),
    option("--cache/--no-cache", "may_cache", default=None, help="Whether its pages may be kept; they may by default."),
    option(
        "--expires", metavar="WHEN", help="90d, 12h, or a date (2027-01-31, its beginning by UTC); never by default."
    ),
    _most(
        "--requests-per-s",
        type=Number(float, math.ulp(0.0), _MOST, "a number above 0, or none", _NONE),
        help="Requests a second at most; none, the default, is no limit.",
    ),
    _most("--concurrency", type=_COUNT, help="Requests under way at once at most."),
    _most("--pages-a-day", type=_COUNT, help="Pages a day at most, by UTC."),
    _most("--pages-a-month", type=_COUNT, help="Pages a month at most, by UTC."),
)
