"""Service level objectives, and the alerts, dashboard and metric reference made for them.

The alerts follow https://sre.google/workbook/alerting-on-slos/: an alert fires if the error budget burns fast over a
long and a short window.
"""

from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Final, Literal

from ocrsvc.errors import SettingsError
from ocrsvc.telemetry.metric import BUCKETS_S

ALERTS: Final = "alerts.yml"
DASHBOARD: Final = "dashboard.json"
REFERENCE: Final = "metrics.md"

# The largest burn rate that an alert compares with; also in alerts.yml.
_FASTEST_BURN: Final = 14.4
_MIN_SHARE: Final = 1 - 1 / _FASTEST_BURN


class _Text(Template):
    """A template whose delimiter means nothing to Prometheus, Grafana and Markdown."""

    delimiter = "@"


@dataclass(frozen=True, slots=True)
class Objectives:
    """The service's objectives over 30 days; pages of jobs do not count.

    Attributes:
        available: Share of images that do not fail by the service's own fault.
        fast: Share of images that are read within `fast_s`, the bound of a bucket in the histogram of latencies.
    """

    available: float = 0.995
    fast: float = 0.99
    fast_s: float = 5.0

    def __post_init__(self) -> None:
        """Raises SettingsError for a share of 1, a share too low for any alert, or a time that is no bucket's bound."""
        for name, share in (("availability", self.available), ("fast", self.fast)):
            if not _MIN_SHARE < share < 1:
                raise SettingsError(
                    f"{share:g} is no objective for {name}: no alert could fire at {_FASTEST_BURN:g} times its budget.",
                    f"Choose a share between {_MIN_SHARE:.3f} and 1.",
                )
        if self.fast_s not in BUCKETS_S:
            bounds = ", ".join(map(str, BUCKETS_S))
            raise SettingsError(f"{self.fast_s:g} s is not the upper bound of a bucket.", f"Choose one of {bounds}.")


def fill_in(name: Literal["alerts.yml", "dashboard.json", "metrics.md"], objectives: Objectives) -> str:
    """Return the text of a template file of this package, with these objectives filled in."""
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
