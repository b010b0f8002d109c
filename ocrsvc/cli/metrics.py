"""`ocrsvc metrics`: lists the metrics, and prints their reference, alert rules and a dashboard."""

from __future__ import annotations

import argparse
from typing import Final

from ocrsvc.monitoring.objectives import ALERTS, DASHBOARD, REFERENCE, Objectives, fill_in
from ocrsvc.telemetry.metrics import METRICS

HELP: Final = "print the metrics of a service, alert rules for Prometheus, or a dashboard for Grafana"
_USUAL: Final = Objectives()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc metrics`."""
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--markdown", action="store_true", help="print the reference of all metrics and alerts")
    kinds.add_argument("--alerts", action="store_true", help="print recording and alert rules for Prometheus")
    kinds.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana")
    parser.add_argument(
        "--availability",
        type=float,
        default=_USUAL.available,
        metavar="SHARE",
        help="objective: images answered, of those and the service's own failures (default %(default)s)",
    )
    parser.add_argument(
        "--fast",
        type=float,
        default=_USUAL.fast,
        metavar="SHARE",
        help="objective: images read in time (default %(default)s)",
    )
    parser.add_argument(
        "--fast-s",
        type=float,
        default=_USUAL.fast_s,
        metavar="SECONDS",
        help="which time that is, the upper end of a bucket (default %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print; raises SettingsError for objectives that cannot be watched."""
    objectives = Objectives(args.availability, args.fast, args.fast_s)
    if args.alerts:
        print(fill_in(ALERTS, objectives), end="")
    elif args.dashboard:
        print(fill_in(DASHBOARD, objectives), end="")
    elif args.markdown:
        print(fill_in(REFERENCE, objectives), end="")
    else:
        width = max(len(metric.shown_name) for metric in METRICS)
        for metric in METRICS:
            print(f"{metric.shown_name:{width}}  {metric.shown_kind:9}  {metric.help}")
    return 0
