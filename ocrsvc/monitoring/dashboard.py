"""The dashboard for Grafana as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ocrsvc.monitoring.objectives import Objectives
from ocrsvc.monitoring.panels import Panel, Query, Row, rows
from ocrsvc.telemetry.metrics import BUILD

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_ROW_HEIGHT: Final = 1
# Of Grafana 10 and 11.
_SCHEMA: Final = 39
Json = dict[str, Any]


def dashboard_file(objectives: Objectives) -> str:
    """The text of deploy/grafana/ocrsvc.json."""
    return json.dumps(dashboard(objectives), indent=1) + "\n"


def dashboard(objectives: Objectives) -> Json:
    """The dashboard as Grafana imports it."""
    return {
        "title": "ocrsvc",
        "uid": "ocrsvc",
        "tags": ["ocrsvc"],
        "description": "Made by `ocrsvc metrics --dashboard`.",
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_source_variable(), *map(_label_variable, ("job", "instance"))]},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_laid_out(rows(objectives))),
    }


def _laid_out(found: Sequence[Row]) -> Iterator[Json]:
    """The panels from left to right; those beside each other are equally high."""
    top, number = 0, 0
    for title, panels in found:
        number += 1
        yield _heading(title, number, _place(0, top, _COLUMNS, _ROW_HEIGHT))
        left, top, height = 0, top + _ROW_HEIGHT, 0
        for panel in panels:
            if left + panel.width > _COLUMNS:
                left, top = 0, top + height
            number, height = number + 1, panel.height
            yield _panel(panel, number, _place(left, top, panel.width, height))
            left += panel.width
        top += height


def _heading(title: str, number: int, place: Json) -> Json:
    return {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}


def _place(x: int, y: int, w: int, h: int) -> Json:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel, number: int, place: Json) -> Json:
    custom = {"fillOpacity": 10, "showPoints": "never", "stacking": {"mode": "normal" if panel.is_stacked else "none"}}
    options: Json = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        custom = {}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "textMode": "value_and_name"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
        "targets": [_target(query, ref) for query, ref in zip(panel.queries, "ABCDEFGH", strict=False)],
    }


def _target(query: Query, ref: str) -> Json:
    return {"refId": ref, "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend, "range": True}


def _source_variable() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _label_variable(label: str) -> Json:
    """What can be chosen of the services that are scraped; all of them at first."""
    chosen = '{job=~"$job"}' if label == "instance" else ""
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({BUILD.shown_name}{chosen}, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
