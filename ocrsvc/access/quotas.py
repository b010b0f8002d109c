"""Limits of a key in words and in headers: what is left, and when there is more.

The headers are those of draft-ietf-httpapi-ratelimit-headers-10 (`RateLimit-Policy`, `RateLimit`), and the three of its
earlier versions, which most clients and proxies know (`RateLimit-Limit`, `-Remaining`, `-Reset`), for the limit of
which the least is left.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ocrsvc.access.records import KeyLimits, Usage
from ocrsvc.access.store import LimitName, LimitReached
from ocrsvc.errors import QuotaExceeded

_DAY_S: Final = 86_400
_BUSY_RETRY_S: Final = 1


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit of a key at one moment.

    Attributes:
        name: As in the headers.
        limit: Pages or requests in a window.
        window_s: How long it is.
        left: What is left of it.
        reset_s: Whole seconds until there is more.
    """

    name: str
    limit: int
    window_s: int
    left: int
    reset_s: int


def quotas_of(limits: KeyLimits, usage: Usage, now_s: float) -> list[Quota]:
    """The limits that count over time, those of pages first."""
    found = []
    if limits.pages_a_day is not None:
        left = limits.pages_a_day - usage.today - usage.reserved
        found.append(Quota("pages-a-day", limits.pages_a_day, _DAY_S, max(0, left), _until_day_s(now_s)))
    if limits.pages_a_month is not None:
        left, days = limits.pages_a_month - usage.this_month - usage.reserved, _days_of_month(now_s)
        quota = Quota("pages-a-month", limits.pages_a_month, days * _DAY_S, max(0, left), _until_month_s(now_s))
        found.append(quota)
    if limits.requests_per_s is not None:
        found.append(_rate_of(limits.requests_per_s, usage.full_s))
    return found


def burst_s(requests_per_s: float) -> float:
    """How far ahead of its rate a key may be: by the requests of a second, or by a single one."""
    return max(1.0, 1.0 / requests_per_s)


def headers_of(limits: KeyLimits, usage: Usage, now_s: float) -> Mapping[str, str]:
    """The RateLimit headers of an answer; none for a key without a limit over time."""
    quotas = quotas_of(limits, usage, now_s)
    if not quotas:
        return {}
    tightest = min(quotas, key=lambda quota: quota.left / quota.limit)
    return {
        "RateLimit-Policy": ", ".join(f'"{quota.name}";q={quota.limit};w={quota.window_s}' for quota in quotas),
        "RateLimit": ", ".join(f'"{quota.name}";r={quota.left};t={quota.reset_s}' for quota in quotas),
        "RateLimit-Limit": str(tightest.limit),
        "RateLimit-Remaining": str(tightest.left),
        "RateLimit-Reset": str(tightest.reset_s),
    }


def refusal_of(limits: KeyLimits, reached: LimitReached, now_s: float) -> QuotaExceeded:
    """The error for a limit that is reached."""
    detail, remedy = _WORDS[reached.limit]
    return QuotaExceeded(
        detail.format(limits=limits),
        remedy,
        _retry_after_s(limits, reached, now_s),
        headers_of(limits, reached.usage, now_s),
    )


_WORDS: Final[Mapping[LimitName, tuple[str, str]]] = {
    "rate": ("This API key may make {limits.requests_per_s:g} requests a second.", "Send them more slowly."),
    "concurrency": (
        "This API key may have {limits.concurrency} requests under way at once.",
        "Wait for one of them to be answered.",
    ),
    "day": (
        "This API key has {limits.pages_a_day} pages a day, and fewer are left than this needs.",
        "Send it again tomorrow, by UTC, or ask the operator for more.",
    ),
    "month": (
        "This API key has {limits.pages_a_month} pages a month, and fewer are left than this needs.",
        "Send it again next month, by UTC, or ask the operator for more.",
    ),
}


def _retry_after_s(limits: KeyLimits, reached: LimitReached, now_s: float) -> int:
    if reached.limit == "day":
        return _until_day_s(now_s)
    if reached.limit == "month":
        return _until_month_s(now_s)
    if reached.limit == "rate" and limits.requests_per_s is not None:
        return _rate_of(limits.requests_per_s, reached.usage.full_s).reset_s or _BUSY_RETRY_S
    return _BUSY_RETRY_S


def _rate_of(requests_per_s: float, full_s: float) -> Quota:
    """Requests that may come at once now, and when there is another."""
    step_s, most_s = 1 / requests_per_s, burst_s(requests_per_s)
    left = max(0, math.floor((most_s - full_s) / step_s + _ROUNDING))
    next_s = max(0.0, full_s + step_s - most_s)
    return Quota("requests", max(1, math.floor(most_s / step_s)), math.ceil(most_s), left, math.ceil(next_s))


# Of sums of floats: a whole request must not be missing for it.
_ROUNDING: Final = 1e-6


def _until_day_s(now_s: float) -> int:
    return math.ceil(_DAY_S - now_s % _DAY_S)


def _until_month_s(now_s: float) -> int:
    today = time.gmtime(now_s).tm_mday
    return (_days_of_month(now_s) - today) * _DAY_S + _until_day_s(now_s)


def _days_of_month(now_s: float) -> int:
    now = time.gmtime(now_s)
    return calendar.monthrange(now.tm_year, now.tm_mon)[1]
