"""Routing where several adapters share a path, and the shape in which a wrong path or method is answered.

The port decides first: at a usual port that is bound for an adapter, that adapter's clients come. Else the body does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from flask import Flask
from werkzeug.routing import Rule

from ocrsvc.errors import OcrsvcError
from ocrsvc.http.request import Request
from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

Shared = Mapping[tuple[str, str], Mapping[str, Rule]]
"""(path, method) to the rules of the adapters that have both; only where they are several."""

FORMS: Final = frozenset({"multipart/form-data", "application/x-www-form-urlencoded"})


class Router:
    """Sends requests to the adapters of an application; made when all of them are registered.

    Each adapter is a blueprint with its name, and owns the shape of its failures.
    """

    def __init__(self, app: Flask, settings: Settings) -> None:
        self._rules = _rules_by_adapter(app)
        self._shared = _shared(self._rules)
        self._usual_ports = settings.usual_ports

    def by_head(self, request: Request) -> None:
        """To an adapter that its port, its headers and its key allow; what matches nothing, to the only one there."""
        if request.routing_exception is None:
            if rivals := self._rivals(request):
                request.url_rule = rivals[_best_by_head(request, self._allowed(request, rivals))]
        elif len(owners := self._adapters_at_port(request) or _owners(self._rules, request.path)) == 1:
            # Nothing matched; the failure is answered by the blueprint that the rule names.
            request.url_rule = self._rules[next(iter(owners))][0]

    def by_body(self, request: Request) -> None:
        """Where several are left, to the one that the body of a POST fits."""
        rivals = self._rivals(request) if request.method == "POST" else {}
        left = self._allowed(request, rivals)
        if len(left) > 1:
            name = next((name for name in _by_body(request, left) if name in left), None)
            request.url_rule = rivals[name] if name else request.url_rule

    def _rivals(self, request: Request) -> Mapping[str, Rule]:
        """The rules of the adapters that share its path and method."""
        return {} if request.url_rule is None else self._shared.get((request.url_rule.rule, request.method), {})

    def _allowed(self, request: Request, rivals: Collection[str]) -> Collection[str]:
        """The rivals for whose sake its port is bound, and of these the ones that its key is for; all if none is."""
        left = self._adapters_at_port(request).intersection(rivals) or rivals
        if request.key is not None and request.key.adapters is not None:
            return request.key.adapters.intersection(left) or left
        return left

    def _adapters_at_port(self, request: Request) -> frozenset[str]:
        port = request.environ.get("SERVER_PORT", "")
        return frozenset(name for name in self._usual_ports if str(adapters()[name].port) == port)


def _best_by_head(request: Request, rivals: Collection[str]) -> str:
    """The one of several adapters that suits the method and the type of the body."""
    if len(rivals) == 1:
        return next(iter(rivals))
    if request.method != "POST":
        # The service's own page tells browsers and programs apart by itself.
        return "page" if "page" in rivals else min(rivals, key=_rank)
    forms = _taking_forms().intersection(rivals) if request.mimetype in FORMS else ()
    return min(forms or rivals, key=_rank)


def _rank(name: str) -> tuple[bool, str]:
    """By their names, those last that yield their paths to others."""
    entry = adapters().get(name)
    return (entry is not None and entry.yields_paths, name)


def _by_body(request: Request, left: Collection[str]) -> Iterator[str]:
    """The adapters that this body fits, best first; by its members those that are left."""
    if request.mimetype == "multipart/form-data":
        yield from _taking_forms()
        return
    raw = None
    # What cannot be read, its adapter reports.
    with suppress(OcrsvcError):
        raw, members = request.content.raw, request.content.members
        sent = ((name, entry.members) for name, entry in adapters().items() if name in left)
        yield from (name for name, wanted in sent if not members.keys().isdisjoint(wanted))
    if request.mimetype == "application/x-www-form-urlencoded" or raw is not None:
        yield from _taking_forms()


def _taking_forms() -> frozenset[str]:
    """The adapters whose clients send forms."""
    return frozenset(name for name, entry in adapters().items() if entry.takes_forms)


def _rules_by_adapter(app: Flask) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in app.url_map.iter_rules():
        found.setdefault(rule.endpoint.partition(".")[0], []).append(rule)
    return found


def _shared(rules_by_adapter: Mapping[str, Iterable[Rule]]) -> Shared:
    found: dict[tuple[str, str], dict[str, Rule]] = {}
    for name, rules in rules_by_adapter.items():
        for rule in rules:
            for method in rule.methods or ():
                found.setdefault((rule.rule, method), {})[name] = rule
    return {place: rivals for place, rivals in found.items() if len(rivals) > 1}


def _owners(rules_by_adapter: Mapping[str, Iterable[Rule]], path: str) -> frozenset[str]:
    """The adapters that have this very path."""
    return frozenset(name for name, rules in rules_by_adapter.items() if any(rule.rule == path for rule in rules))
