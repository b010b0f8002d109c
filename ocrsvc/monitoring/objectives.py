"""Service level objectives, and the alerts, dashboard and reference that are filled in with their numbers.

The alerts follow https://sre.google/workbook/alerting-on-slos/: one fires when the error budget burns fast over a long
window and still does over a short one.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Final, Literal

from ocrsvc.errors import SettingsError
from ocrsvc.telemetry.metric import BUCKETS_S

ALERTS: Final = "alerts.yml"
DASHBOARD: Final = "dashboard.json"
REFERENCE: Final = "metrics.md"

# The largest multiple of the budget's rate that an alert asks for; alerts.yml has it too.
_FASTEST_BURN: Final = 14.4
_LEAST_SHARE: Final = 1 - 1 / _FASTEST_BURN


class _Text(Template):
    """Prometheus, Grafana and Markdown leave this delimiter alone."""

    delimiter = "@"


@dataclass(frozen=True, slots=True)
class Objectives:
    """What the service promises over 30 days. Pages of jobs are no part of it.

    Attributes:
        available: Share of images that are answered, of those and the failures by the service's own fault.
        fast: Share of images that are read within `fast_s`, which is the upper end of a bucket.
    """

    available: float = 0.995
    fast: float = 0.99
    fast_s: float = 5.0

    def __post_init__(self) -> None:
        """Raises SettingsError for an objective that no alert can watch."""
        for name, share in (("availability", self.available), ("fast", self.fast)):
            if not _LEAST_SHARE < share < 1:
                raise SettingsError(
                    f"{share:g} is no objective for {name}: at {_FASTEST_BURN:g} times its budget everything fails.",
                    f"Name a share between {_LEAST_SHARE:.3f} and 1.",
                )
        if self.fast_s not in BUCKETS_S:
            raise SettingsError(
                f"{self.fast_s:g} s is not the upper end of a bucket.", f"Name one of {', '.join(map(str, BUCKETS_S))}."
            )


def fill_in(name: Literal["alerts.yml", "dashboard.json", "metrics.md"], objectives: Objectives) -> str:
    """The text of a file of this package for these objectives."""
    error_budget, latency_budget = 1 - objectives.available, 1 - objectives.fast
    text = files("ocrsvc.monitoring").joinpath(name).read_text(encoding="utf-8")
    return _Text(text).substitute(
        available_percent=f"{objectives.available:.2%}",
        fast_percent=f"{objectives.fast:.2%}",
        error_budget=f"{error_budget:.6g}",
        error_budget_percent=f"{error_budget:.3%}",
        latency_budget=f"{latency_budget:.6g}",
        latency_budget_percent=f"{latency_budget:.3%}",
        fast_s=f"{objectives.fast_s:g}",
        fast_bucket=objectives.fast_s,
    )
