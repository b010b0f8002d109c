"""`ocrsvc metrics`: what is made of the table of metrics: its reference, alert rules, and a dashboard."""

from __future__ import annotations

import argparse
from typing import Final

from ocrsvc.monitoring.alerts import alerts_file
from ocrsvc.monitoring.dashboard import dashboard_file
from ocrsvc.monitoring.objectives import Objectives
from ocrsvc.monitoring.reference import metric_lines, reference_file

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
        print(alerts_file(objectives), end="")
    elif args.dashboard:
        print(dashboard_file(objectives), end="")
    elif args.markdown:
        print(reference_file(objectives), end="")
    else:
        print("\n".join(metric_lines()))
    return 0
