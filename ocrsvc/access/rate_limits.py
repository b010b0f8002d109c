"""A key's remaining quotas as RateLimit headers (draft-ietf-httpapi-ratelimit-headers-10) and in refusals."""

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
# Tolerance for floating-point sums when the number of requests left is rounded down.
_ROUNDING: Final = 1e-6

_REFUSALS: Final[Mapping[LimitName, tuple[str, str]]] = {
    "requests": ("This API key may make {limits.requests_per_s:g} requests a second.", "Send them more slowly."),
    "concurrency": (
        "This API key may have {limits.concurrency} requests under way at once.",
        "Wait for one of them to be answered.",
    ),
    "pages-a-day": (
        "This API key has {limits.pages_a_day} pages a day, and fewer are left than this needs.",
        "Send it again tomorrow (UTC), or ask the operator for more.",
    ),
    "pages-a-month": (
        "This API key has {limits.pages_a_month} pages a month, and fewer are left than this needs.",
        "Send it again next month (UTC), or ask the operator for more.",
    ),
}


class Quota(NamedTuple):
    """One limit of a key now: `limit` per window, `left` of it, and seconds until more is available."""

    name: LimitName
    limit: int
    window_s: int
    left: int
    reset_s: int


def quotas_of(limits: KeyLimits, usage: Usage, now_s: float) -> list[Quota]:
    """The key's limits per day, month and second, page quotas first."""
    quotas, (day_s, month_s, window_s) = [], _rest_of_periods_s(now_s)
    if limits.pages_a_day is not None:
        left = limits.pages_a_day - usage.today - usage.reserved
        quotas.append(Quota("pages-a-day", limits.pages_a_day, _DAY_S, max(0, left), day_s))
    if limits.pages_a_month is not None:
        left = limits.pages_a_month - usage.this_month - usage.reserved
        quotas.append(Quota("pages-a-month", limits.pages_a_month, window_s, max(0, left), month_s))
    if limits.requests_per_s is not None:
        quotas.append(_request_quota(limits.requests_per_s, usage.full_s))
    return quotas


def headers_of(limits: KeyLimits, usage: Usage, now_s: float) -> Mapping[str, str]:
    """The RateLimit headers of a response; empty for a key without quotas and without a rate limit."""
    quotas = quotas_of(limits, usage, now_s)
    if not quotas:
        return {}
    return {
        "RateLimit-Policy": ", ".join([f'"{quota.name}";q={quota.limit};w={quota.window_s}' for quota in quotas]),
        "RateLimit": ", ".join([f'"{quota.name}";r={quota.left};t={quota.reset_s}' for quota in quotas]),
    }


def is_near_quota(limits: KeyLimits, usage: Usage, now_s: float) -> bool:
    """Whether at most a tenth of the day's or month's pages is left."""
    quotas = quotas_of(limits, usage, now_s)
    return any(quota.left <= _NEAR * quota.limit for quota in quotas if quota.name.startswith("pages"))


def check_possible(limits: KeyLimits, pages: int) -> None:
    """Raises PagesOverQuota if a request needs more pages than the whole quota of a day or month."""
    for quota, period in ((limits.pages_a_day, "day"), (limits.pages_a_month, "month")):
        if quota is not None and pages > quota:
            raise PagesOverQuota(
                f"This needs at least {pages} pages, and the API key has {quota} a {period}.",
                "Ask for fewer pages at a time, or ask the operator of this service for more.",
            )


def refusal_of(limits: KeyLimits, reached: LimitName, usage: Usage, now_s: float) -> QuotaExceeded:
    """The error for a reached limit."""
    detail, remedy = _REFUSALS[reached]
    resets_s = {quota.name: quota.reset_s for quota in quotas_of(limits, usage, now_s)}
    headers = headers_of(limits, usage, now_s)
    return QuotaExceeded(detail.format(limits=limits), remedy, resets_s.get(reached) or _BUSY_RETRY_S, headers)


def _request_quota(requests_per_s: float, full_s: float) -> Quota:
    """The rate limit as a quota: requests left of the burst, and seconds until the next one is allowed."""
    step_s, window_s = 1 / requests_per_s, burst_s(requests_per_s)
    left = max(0, math.floor((window_s - full_s) / step_s + _ROUNDING))
    next_s = max(0.0, full_s + step_s - window_s)
    return Quota("requests", max(1, math.floor(window_s / step_s)), math.ceil(window_s), left, math.ceil(next_s))


def _rest_of_periods_s(now_s: float) -> tuple[int, int, int]:
    """Seconds until the day and the month end, and the month's length in seconds; in UTC."""
    now = time.gmtime(now_s)
    days = calendar.monthrange(now.tm_year, now.tm_mon)[1]
    day_s = math.ceil(_DAY_S - now_s % _DAY_S)
    return day_s, day_s + (days - now.tm_mday) * _DAY_S, days * _DAY_S
