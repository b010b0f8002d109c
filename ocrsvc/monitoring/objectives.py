"""Service level objectives, and their alerts by several burn rates over several windows each.

After "Alerting on SLOs" in Google's Site Reliability Workbook, https://sre.google/workbook/alerting-on-slos/: an alert
fires when the error budget burns so fast over a long window that it matters, and over a short one that it still does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.errors import SettingsError
from ocrsvc.monitoring.promql import one_of, series, total_rate
from ocrsvc.monitoring.rules import Alert, Recording
from ocrsvc.telemetry.metric import BUCKETS_S
from ocrsvc.telemetry.metrics import CACHE_HITS, FAILURES, IMAGES, SERVICE_FAULTS, STAGE_SECONDS

WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
_FAILED: Final = "ocrsvc:failures:rate{window}"
ERROR_RATIO: Final = "ocrsvc:image_errors:ratio_rate{window}"
SLOW_RATIO: Final = "ocrsvc:slow_images:ratio_rate{window}"
# The service, wherever it runs: one job in one namespace.
_SERVICE: Final = "namespace, job"
_TOTAL: Final = 'stage="total"'


@dataclass(frozen=True, slots=True)
class BurnRate:
    """How fast the budget of 30 days burns: the multiple of the rate that just uses it up, and over which windows."""

    factor: float
    long: str
    short: str


FAST: Final = (BurnRate(14.4, "1h", "5m"), BurnRate(6, "6h", "30m"))
"""2 % of the budget in an hour, 5 % in six: somebody should look now."""

SLOW: Final = (BurnRate(3, "1d", "2h"), BurnRate(1, "3d", "6h"))
"""10 % of the budget in a day, or in three: somebody should look on a working day."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """What the service promises over 30 days.

    Attributes:
        available: The share of images that are answered, of those and the failures that are the service's own.
        fast: The share of images that are read within `fast_s`.
        fast_s: Seconds from when an image is taken until it is read; a bucket's upper end.
    """

    available: float = 0.995
    fast: float = 0.99
    fast_s: float = 5.0

    def __post_init__(self) -> None:
        """Raises SettingsError for an objective of which no alert could come."""
        for name, share in (("availability", self.available), ("fast", self.fast)):
            if not _least_share() < share < 1:
                raise SettingsError(
                    f"{share:g} is no objective for {name}: at {FAST[0].factor:g} times its budget everything fails.",
                    f"Name a share between {_least_share():.3f} and 1.",
                )
        if self.fast_s not in BUCKETS_S:
            raise SettingsError(
                f"{self.fast_s:g} s is not the upper end of a bucket.", f"Name one of {', '.join(map(str, BUCKETS_S))}."
            )


def _least_share() -> float:
    return 1 - 1 / FAST[0].factor


def recordings(objectives: Objectives) -> Iterator[Recording]:
    """The share of images that failed, and of those that were slow, over each window."""
    for window in WINDOWS:
        yield Recording(_FAILED.format(window=window), _failed(window))
        yield Recording(ERROR_RATIO.format(window=window), _error_ratio(window))
        yield Recording(SLOW_RATIO.format(window=window), _slow_ratio(window, objectives.fast_s))


def _failed(window: str) -> str:
    """Failures in a second; before the first failure there is no series of them, but there is one of images."""
    failed = total_rate(FAILURES, window, f'code=~"{one_of(SERVICE_FAULTS)}"', by=_SERVICE)
    return f"{failed} or 0 * {total_rate(IMAGES, window, by=_SERVICE)}"


def _error_ratio(window: str) -> str:
    failed = _FAILED.format(window=window)
    read, cached = (total_rate(metric, window, by=_SERVICE) for metric in (IMAGES, CACHE_HITS))
    return f"{failed} / ({failed} + {read} + {cached})"


def _slow_ratio(window: str, fast_s: float) -> str:
    in_time = total_rate(STAGE_SECONDS, window, _TOTAL, f'le="{fast_s}"', part="bucket", by=_SERVICE)
    return f"1 - {in_time} / {total_rate(STAGE_SECONDS, window, _TOTAL, part='count', by=_SERVICE)}"


def alerts(objectives: Objectives) -> Iterator[Alert]:
    """Two for each objective, by how soon somebody should look."""
    percent, slow = "{{ $value | humanizePercentage }} of images", f"take more than {objectives.fast_s:g} s"
    yield from _two(
        "OcrsvcErrorBudgetBurns",
        (ERROR_RATIO, objectives.available),
        f"{percent} fail through the service's fault; the objective is {1 - objectives.available:.3%}",
        f"Look at {series(FAILURES)} by code: queue_full and deadline_exceeded want more workers or fewer "
        "callers, internal and engine_failed stand in the log with the id of the request.",
    )
    yield from _two(
        "OcrsvcLatencyBudgetBurns",
        (SLOW_RATIO, objectives.fast),
        f"{percent} {slow}; the objective is {1 - objectives.fast:.3%}",
        f"Look at {series(STAGE_SECONDS)} by stage: queue wants more workers or fewer callers, engine smaller "
        "images or a faster machine, decode smaller files.",
    )


def _two(name: str, objective: tuple[str, float], summary: str, action: str) -> Iterator[Alert]:
    ratio, share = objective
    yield Alert(f"{name}Fast", _burning(ratio, 1 - share, FAST), "0s", "critical", summary, action)
    yield Alert(f"{name}Slow", _burning(ratio, 1 - share, SLOW), "0s", "warning", summary, action)


def _burning(ratio: str, budget: float, rates: tuple[BurnRate, ...]) -> str:
    return " or ".join(
        f"({ratio.format(window=rate.long)} > {rate.factor:g} * {budget:.6g} "
        f"and {ratio.format(window=rate.short)} > {rate.factor:g} * {budget:.6g})"
        for rate in rates
    )
