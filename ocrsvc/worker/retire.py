"""Should this worker go on, or be replaced, and why? Pure: from readings and limits; knows no clock and no process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

# Of the machine's memory; the rest is for the arbiter, the page cache and whoever else lives there.
_SOFT_SHARE: Final = 0.8
_HARD_SHARE: Final = 0.9


class Reason(IntEnum):
    """Why a worker is replaced. NONE is what the scoreboard holds while there is no reason."""

    NONE = 0
    MAX_REQUESTS = 1
    MAX_AGE = 2
    RSS_SOFT = 3
    RSS_HARD = 4
    GROWTH = 5
    RELOAD = 6
    OPERATOR = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may reach; 0 is no limit.

    Attributes:
        max_requests: Requests served.
        max_age_s: Seconds since it was ready.
        rss_soft_bytes: Resident memory at which it is replaced, successor first.
        rss_hard_bytes: Resident memory at which it stops accepting at once.
    """

    max_requests: int = 0
    max_age_s: float = 0.0
    rss_soft_bytes: int = 0
    rss_hard_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Readings:
    """What one check of a worker found.

    Attributes:
        requests: Served so far.
        age_s: Seconds since it was ready.
        rss_bytes: Resident memory now.
        footprint_bytes: Resident memory after warm-up.
        leap_bytes: The most that it grew between two checks so far.
        growth_bytes_per_s: The mean growth lately; may be negative.
        notice_s: Seconds from the wish for a successor until it serves.
    """

    requests: int
    age_s: float
    rss_bytes: int
    footprint_bytes: int = 0
    leap_bytes: int = 0
    growth_bytes_per_s: float = 0.0
    notice_s: float = 0.0


def retire(readings: Readings, limits: Limits) -> Reason:
    """The reason to replace the worker; NONE to keep it. RSS_HARD means at once, without waiting for a successor."""
    if limits.rss_hard_bytes and readings.rss_bytes >= limits.rss_hard_bytes:
        return Reason.RSS_HARD
    if limits.rss_soft_bytes and readings.rss_bytes >= limits.rss_soft_bytes:
        return Reason.RSS_SOFT
    if limits.rss_hard_bytes and expected_bytes(readings, limits.rss_hard_bytes) >= limits.rss_hard_bytes:
        return Reason.GROWTH
    if limits.max_requests and readings.requests >= limits.max_requests:
        return Reason.MAX_REQUESTS
    if limits.max_age_s and readings.age_s >= limits.max_age_s:
        return Reason.MAX_AGE
    return Reason.NONE


def expected_bytes(readings: Readings, limit_bytes: int) -> int:
    """Resident memory to be expected by the next check, or by the time a successor could serve: the larger of both.

    The trend counts only when half of the room is used up: every worker grows quickly at first, and one that is
    replaced for that is replaced by another that does the same.
    """
    halfway = 2 * readings.rss_bytes >= readings.footprint_bytes + limit_bytes
    trend_bytes = round(readings.growth_bytes_per_s * readings.notice_s) if halfway else 0
    return readings.rss_bytes + max(readings.leap_bytes, trend_bytes, 0)


def calibrate(soft: int | None, hard: int | None, *, footprint_bytes: int, memory_bytes: int, workers: int) -> Limits:
    """The memory limits of one of several workers.

    All workers at their limit and one successor after its warm-up fill 80 % (soft) or 90 % (hard) of the memory. A
    limit that the worker has reached already when it starts to serve cannot be kept by replacing it, and is left off.

    Args:
        soft, hard: What the operator set, in bytes; 0 is none, None asks for a calibrated limit.
        footprint_bytes: Resident memory after warm-up.
        memory_bytes: What the machine or the container has.
        workers: How many share it, without the successor.
    """
    found = []
    for given, share in ((soft, _SOFT_SHARE), (hard, _HARD_SHARE)):
        limit = round((share * memory_bytes - footprint_bytes) / workers) if given is None else given
        found.append(limit if limit > footprint_bytes else 0)
    return Limits(rss_soft_bytes=found[0], rss_hard_bytes=found[1])
