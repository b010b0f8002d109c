"""Rules of Prometheus: what one is, and the file that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A query whose result is kept under a name."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A query that should give nothing.

    Attributes:
        name: Of the alert.
        query: What it finds is alerted, each series by itself.
        lasting: How long it must be found before, such as "5m".
        severity: critical: somebody should look now; warning: on a working day.
        summary: What is wrong, for people; may use Prometheus' templates.
        action: What to look at.
    """

    name: str
    query: str
    lasting: str
    severity: Severity
    summary: str
    action: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: tuple[Recording | Alert, ...]


def rules_file(groups: Iterable[Group], comment: str) -> str:
    """The rules as the YAML that Prometheus loads, under a comment."""
    return "\n".join([f"# {comment}", "groups:", *(line for group in groups for line in _group(group)), ""])


def _group(group: Group) -> Iterator[str]:
    yield f"  - name: {group.name}"
    yield "    rules:"
    for rule in group.rules:
        yield from _recording(rule) if isinstance(rule, Recording) else _alert(rule)


def _recording(rule: Recording) -> Iterator[str]:
    yield f"      - record: {rule.name}"
    yield f"        expr: {_quoted(rule.query)}"


def _alert(rule: Alert) -> Iterator[str]:
    yield f"      - alert: {rule.name}"
    yield f"        expr: {_quoted(rule.query)}"
    yield f"        for: {rule.lasting}"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    yield f"          summary: {_quoted(rule.summary)}"
    yield f"          action: {_quoted(rule.action)}"


def _quoted(text: str) -> str:
    """A scalar of YAML, on one line."""
    return "'" + text.replace("'", "''") + "'"
