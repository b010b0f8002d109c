"""`ocrsvc metrics`: lists the metrics, and prints their reference, alert rules and a dashboard."""

from __future__ import annotations

from functools import partial
from typing import Final

from ocrsvc.cli.options import check_at_most_one, command, option
from ocrsvc.monitoring.objectives import ALERTS, DASHBOARD, REFERENCE, Objectives, fill_in
from ocrsvc.telemetry.metrics import METRICS

_USUAL: Final = Objectives()
_objective: Final = partial(option, section="Objectives", type=float, show_default=True)


@command(
    "ocrsvc metrics",
    "ocrsvc metrics --alerts --availability 0.999 > alerts.yml",
    "ocrsvc metrics --dashboard > dashboard.json",
)
@option("--markdown", is_flag=True, help="Print the reference of all metrics and alerts.")
@option("--alerts", is_flag=True, help="Print recording and alert rules for Prometheus.")
@option("--dashboard", is_flag=True, help="Print a dashboard for Grafana.")
@_objective(
    "--availability",
    default=_USUAL.available,
    metavar="SHARE",
    help="Images answered, of those and the service's own failures.",
)
@_objective("--fast", default=_USUAL.fast, metavar="SHARE", help="Images read in time.")
@_objective("--fast-s", default=_USUAL.fast_s, metavar="SECONDS", help="Which time that is, the upper end of a bucket.")
def metrics(*, markdown: bool, alerts: bool, dashboard: bool, availability: float, fast: float, fast_s: float) -> None:
    """Print the metrics of a service, alert rules for Prometheus, or a dashboard for Grafana."""
    check_at_most_one(markdown=markdown, alerts=alerts, dashboard=dashboard)
    objectives = Objectives(availability, fast, fast_s)
    if alerts:
        print(fill_in(ALERTS, objectives), end="")
    elif dashboard:
        print(fill_in(DASHBOARD, objectives), end="")
    elif markdown:
        print(fill_in(REFERENCE, objectives), end="")
    else:
        width = max(len(metric.shown_name) for metric in METRICS)
        print("\n".join(f"{metric.shown_name:{width}}  {metric.shown_kind:9}  {metric.help}" for metric in METRICS))
