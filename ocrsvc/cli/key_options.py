"""The options of a key on the command line, and the entry that they make."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, get_args

from ocrsvc.access.api_keys import SCOPES, KeyEntry, KeyLimits, KeyPriority
from ocrsvc.errors import OperatorError
from ocrsvc.registry import adapters

NATIVE: Final = "api"
"""The native API, among the names of adapters."""

_ALL: Final = "all"
_NONE: Final = "none"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST: Final = 10**12
_LONGEST_S: Final = 10 * 366 * 86_400

_Number = TypeVar("_Number", int, float)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a key. What is not given stays: of a new key the defaults, else what it has."""
    parser.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help=f"what it is for ({', '.join(SCOPES)}); may be given several times; read by default",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        metavar="FORMAT",
        help="a format it is for, by its name in OCRSVC_DIALECTS, api for the native API; may be given several times; "
        "all by default",
    )
    for option, kind, words in (
        ("--requests-per-s", _above_zero(float), "requests a second"),
        ("--concurrency", _above_zero(int), "requests under way at once"),
        ("--pages-a-day", _above_zero(int), "pages a day, by UTC"),
        ("--pages-a-month", _above_zero(int), "pages a month, by UTC"),
    ):
        parser.add_argument(option, type=kind, metavar="N", help=f"{words} at most; none is no limit, the default")
    parser.add_argument("--priority", choices=get_args(KeyPriority), help="its highest; interactive by default")
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--no-cache", dest="may_cache", action="store_const", const=False, help="keep no page of it")
    cache.add_argument("--cache", dest="may_cache", action="store_const", const=True, help="the default")
    parser.add_argument(
        "--expires", metavar="WHEN", help="90d, 12h, or a date (2027-01-31, its beginning by UTC); never by default"
    )


def entry_of(args: argparse.Namespace, entry: KeyEntry, now_s: float) -> KeyEntry:
    """An entry with what the options change of it. Raises OperatorError."""
    limits: dict[str, Any] = {
        name: None if number == _NONE else number
        for name in KeyLimits.__slots__
        if (number := getattr(args, name)) is not None
    }
    given: dict[str, Any] = {"limits": replace(entry.limits, **limits)}
    if args.scope:
        given["scopes"] = frozenset(args.scope)
    if args.adapter:
        given["adapters"] = _adapters_of(args.adapter)
    if args.priority:
        given["priority"] = args.priority
    if args.may_cache is not None:
        given["may_cache"] = args.may_cache
    if args.expires:
        given["expires_at"] = _end_of(args.expires, now_s)
    return replace(entry, **given)


def _adapters_of(names: Sequence[str]) -> frozenset[str] | None:
    """The formats of these names; None for all. Raises OperatorError."""
    known = (NATIVE, *adapters())
    if wrong := set(names) - {*known, _ALL}:
        raise OperatorError(f"--adapter is {min(wrong)[:40]!r}.", f"Accepted is {_ALL}, {', '.join(known)}.")
    return None if _ALL in names else frozenset(names)


def seconds_of(text: str) -> float:
    """Seconds of "90s", "30m", "12h" or "7d". Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None or (seconds := int(match[1]) * _UNITS_S[match[2]]) > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted is 90s, 30m, 12h or 7d, up to ten years")
    return float(seconds)


def _end_of(text: str, now_s: float) -> float | None:
    """When a key ends, in Unix seconds. Raises OperatorError."""
    if text == "never":
        return None
    try:
        end_s = now_s + seconds_of(text)
    except argparse.ArgumentTypeError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise OperatorError(
                f"--expires is {text[:40]!r}.", "Accepted is 90d, 12h, 2027-01-31, or never."
            ) from error
        end_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if end_s <= now_s:
        raise OperatorError(f"--expires is {text[:40]!r}, which is over.", "Name a time that is to come.")
    return end_s


def _above_zero(kind: Callable[[str], _Number]) -> Callable[[str], _Number | str]:
    def read(text: str) -> _Number | str:
        if text == _NONE:
            return text
        try:
            number = kind(text)
        except ValueError:
            number = kind("0")
        if not math.isfinite(number) or not 0 < number <= _MOST:
            raise argparse.ArgumentTypeError(f"{text!r}: accepted is a number above 0, or none")
        return number

    return read
