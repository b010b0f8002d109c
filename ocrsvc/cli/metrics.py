"""`ocrsvc metrics`: lists the metrics, and prints their reference, alert rules and a dashboard."""

from functools import partial
from typing import Final

from ocrsvc.cli.options import check_at_most_one, command, option
from ocrsvc.monitoring.objectives import ALERTS, DASHBOARD, REFERENCE, Objectives, fill_in
from ocrsvc.telemetry.metrics import METRICS

_DEFAULTS: Final = Objectives()
_share: Final = partial(option, section="Objectives", type=float, metavar="SHARE", show_default=True)


@command("ocrsvc metrics", "ocrsvc metrics --alerts --availability 0.999 > alerts.yml", "ocrsvc metrics --dashboard")
@option("--markdown", is_flag=True, help="Print the reference of all metrics and alerts.")
@option("--alerts", is_flag=True, help="Print recording and alert rules for Prometheus.")
@option("--dashboard", is_flag=True, help="Print a dashboard for Grafana.")
@_share("--availability", default=_DEFAULTS.available, help="Share of images read without a failure of the service.")
@_share("--fast", default=_DEFAULTS.fast, help="Minimum share of images read within --fast-s.")
@_share("--fast-s", default=_DEFAULTS.fast_s, metavar="SECONDS", help="Limit for --fast: a bucket's upper bound.")
def metrics(*, markdown: bool, alerts: bool, dashboard: bool, availability: float, fast: float, fast_s: float) -> None:
    """List the metrics that a service has, or print alert rules for Prometheus, or a dashboard for Grafana."""
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
