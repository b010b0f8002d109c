"""Limits of a key in RateLimit headers and in refusals: what is left, and when there is more.

The headers are those of draft-ietf-httpapi-ratelimit-headers-10: `RateLimit-Policy` and `RateLimit`.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from ocrsvc.access.api_keys import KeyLimits
from ocrsvc.access.key_store import LimitName, Usage, burst_s
from ocrsvc.errors import PagesOverQuota, QuotaExceeded

_DAY_S: Final = 86_400
_BUSY_RETRY_S: Final = 1
_NEAR: Final = 0.1
# Of sums of floats: a whole request must not be missing for it.
_ROUNDING: Final = 1e-6

_REFUSALS: Final[Mapping[LimitName, tuple[str, str]]] = {
    "requests": ("This API key may make {limits.requests_per_s:g} requests a second.", "Send them more slowly."),
    "concurrency": (
        "This API key may have {limits.concurrency} requests under way at once.",
        "Wait for one of them to be answered.",
    ),
    "pages-a-day": (
        "This API key has {limits.pages_a_day} pages a day, and fewer are left than this needs.",
        "Send it again tomorrow, by UTC, or ask the operator for more.",
    ),
    "pages-a-month": (
        "This API key has {limits.pages_a_month} pages a month, and fewer are left than this needs.",
        "Send it again next month, by UTC, or ask the operator for more.",
    ),
}


class Quota(NamedTuple):
    """One limit of a key at one moment: `limit` a window, of which `left` are left, and more in `reset_s` seconds."""

    name: LimitName
    limit: int
    window_s: int
    left: int
    reset_s: int


def quotas_of(limits: KeyLimits, usage: Usage, now_s: float) -> list[Quota]:
    """The limits that count over time, those of pages first."""
    found, (day_s, month_s, window_s) = [], _rest_of_periods_s(now_s)
    if limits.pages_a_day is not None:
        left = limits.pages_a_day - usage.today - usage.reserved
        found.append(Quota("pages-a-day", limits.pages_a_day, _DAY_S, max(0, left), day_s))
    if limits.pages_a_month is not None:
        left = limits.pages_a_month - usage.this_month - usage.reserved
        found.append(Quota("pages-a-month", limits.pages_a_month, window_s, max(0, left), month_s))
    if limits.requests_per_s is not None:
        found.append(_request_quota(limits.requests_per_s, usage.full_s))
    return found


def headers_of(limits: KeyLimits, usage: Usage, now_s: float) -> Mapping[str, str]:
    """The RateLimit headers of an answer; none for a key without a limit over time."""
    quotas = quotas_of(limits, usage, now_s)
    if not quotas:
        return {}
    return {
        "RateLimit-Policy": ", ".join([f'"{quota.name}";q={quota.limit};w={quota.window_s}' for quota in quotas]),
        "RateLimit": ", ".join([f'"{quota.name}";r={quota.left};t={quota.reset_s}' for quota in quotas]),
    }


def is_near_quota(limits: KeyLimits, usage: Usage, now_s: float) -> bool:
    """Whether at most a tenth of the pages of the day or the month is left."""
    quotas = quotas_of(limits, usage, now_s)
    return any(quota.left <= _NEAR * quota.limit for quota in quotas if quota.name.startswith("pages"))


def check_possible(limits: KeyLimits, pages: int) -> None:
    """Raises PagesOverQuota when one request needs more pages than a whole day or month has; no wait would help."""
    for most, period in ((limits.pages_a_day, "day"), (limits.pages_a_month, "month")):
        if most is not None and pages > most:
            raise PagesOverQuota(
                f"This needs {pages} pages or more, and the API key has {most} a {period} in all.",
                "Ask for fewer pages at a time, or ask the operator of this service for more.",
            )


def refusal_of(limits: KeyLimits, reached: LimitName, usage: Usage, now_s: float) -> QuotaExceeded:
    """The error for a limit that is reached."""
    detail, remedy = _REFUSALS[reached]
    resets_s = {quota.name: quota.reset_s for quota in quotas_of(limits, usage, now_s)}
    headers = headers_of(limits, usage, now_s)
    return QuotaExceeded(detail.format(limits=limits), remedy, resets_s.get(reached) or _BUSY_RETRY_S, headers)


def _request_quota(requests_per_s: float, full_s: float) -> Quota:
    """Requests that may come at once now, and when there is another."""
    step_s, most_s = 1 / requests_per_s, burst_s(requests_per_s)
    left = max(0, math.floor((most_s - full_s) / step_s + _ROUNDING))
    next_s = max(0.0, full_s + step_s - most_s)
    return Quota("requests", max(1, math.floor(most_s / step_s)), math.ceil(most_s), left, math.ceil(next_s))


def _rest_of_periods_s(now_s: float) -> tuple[int, int, int]:
    """Whole seconds until the day and the month end, and those of the whole month; by UTC."""
    now = time.gmtime(now_s)
    days = calendar.monthrange(now.tm_year, now.tm_mon)[1]
    day_s = math.ceil(_DAY_S - now_s % _DAY_S)
    return day_s, day_s + (days - now.tm_mday) * _DAY_S, days * _DAY_S
