"""The reference of all metrics and alerts, as docs/metrics.md has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ocrsvc.monitoring.alerts import groups
from ocrsvc.monitoring.objectives import Objectives
from ocrsvc.monitoring.rules import Alert, Recording
from ocrsvc.telemetry.metric import BUCKETS_S, Metric
from ocrsvc.telemetry.metrics import METRICS, SECTIONS, SERVICE_FAULTS

_PREAMBLE: Final = """\
# Metrics, alerts and the dashboard

Made by `ocrsvc metrics --markdown`; a test keeps it true. [operations.md](operations.md) says how to ask for them and
how to load the files, [design/telemetry.md](design/telemetry.md) why they are what they are.

`GET /metrics` answers as Prometheus' text or as OpenMetrics, whichever is asked for. Any worker answers for the whole
service, and counters never go back when workers are replaced or die. Under another WSGI server than gunicorn with our
configuration, they are those of the one process.
"""
_NOTES: Final = """\
## What to know of them

- The label `door` is the API adapter (trwebocr, …), api, ops, operators, page, or none. `code` is ok, one of
  [the errors](api.md#errors), or http_STATUS; `status` is the HTTP status.
- Calls over gRPC are counted by the same metrics, with the adapters `grpc_kserve_v2`, `grpc_tfserving` and
  `grpc_paddle_serving`, and `grpc` for health checks and what does not exist; `status` is gRPC's by name (OK,
  UNAVAILABLE, …), and `code` is grpc_STATUS where no error of ours stands behind it. A stream is one call; its seconds
  are in no histogram, and a failure that is reported inside an answer (in a stream, or by Paddle Serving's `err_no`)
  is not among the failures. A worker's requests in flight count the calls that hold one of its gRPC threads.
- Requests that gunicorn itself refuses ([api.md](api.md#errors)) are in none of them.
- `slot` is a worker's place, which the next worker gets when one has gone; `gpu` is a GPU's place among all that the
  service has used since its start. A GPU is read where an engine computes on it and NVML answers.
- Engines stop between two lines of a page, so that an engine thread that is busy long after its deadline is a call that
  hangs.
"""
_OBJECTIVES: Final = """\
## Objectives

`deploy/prometheus/alerts.yml` watches two objectives over 30 days; `ocrsvc metrics --alerts --availability 0.999 --fast
0.95 --fast-s 2.5` prints the rules for others.

- **Availability**: {available:.2%} of images are answered. What counts against it are failures by the service's own
  fault, whoever chose the deadline: {faults}.
- **Latency**: {fast:.2%} of images are read within {fast_s:g} s, from when the image is taken apart from its request
  until it is read; how long the client sends, and how many pages a document has, is not in it.

Each has two alerts. The one for now fires when 2 % of the budget are used up in an hour, or 5 % in six; the one for
a working day when it is 10 % in one or in three days; and each only while it goes on.
"""


def metric_lines() -> Iterator[str]:
    """The metrics, one line each."""
    width = max(len(metric.shown_name) for metric in METRICS)
    for metric in METRICS:
        yield f"{metric.shown_name:{width}}  {metric.shown_kind:9}  {metric.help}"


def reference_file(objectives: Objectives) -> str:
    """The text of docs/metrics.md."""
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS_S)
    sections = [_section(title, metrics) for title, metrics in SECTIONS]
    buckets = f"Histograms have buckets up to {bounds} s.\n"
    return "\n".join([_PREAMBLE, *sections, buckets, _NOTES, _objectives(objectives), *_alerts(objectives), ""])


def _section(title: str, metrics: tuple[Metric, ...]) -> str:
    rows = [
        f"| `{metric.shown_name}` | {metric.shown_kind} | {', '.join(metric.labels)} | {metric.unit} | {metric.help} |"
        for metric in metrics
    ]
    return "\n".join(
        [f"## {title}", "", "| metric | type | labels | unit | meaning |", "|---|---|---|---|---|", *rows, ""]
    )


def _objectives(objectives: Objectives) -> str:
    return _OBJECTIVES.format(
        available=objectives.available,
        fast=objectives.fast,
        fast_s=objectives.fast_s,
        faults=", ".join(SERVICE_FAULTS),
    )


def _alerts(objectives: Objectives) -> Iterator[str]:
    """The tables of alerts, and of what is recorded for them."""
    rules = [rule for group in groups(objectives) for rule in group.rules]
    yield "## Alerts\n"
    yield "| alert | severity | after | when | what to look at |"
    yield "|---|---|---|---|---|"
    for rule in rules:
        if isinstance(rule, Alert):
            yield f"| {rule.name} | {rule.severity} | {rule.lasting} | `{_cell(rule.query)}` | {_cell(rule.action)} |"
    yield "\nThe rules of the objectives record, over 5 m, 30 m, 1 h, 2 h, 6 h, 1 d and 3 d:\n"
    for rule in rules:
        if isinstance(rule, Recording) and rule.name.endswith("_rate5m"):
            yield f"- `{rule.name}`: `{rule.query}`"


def _cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")
