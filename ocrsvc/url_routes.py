"""Routing between adapters that share a path, and the choice of the adapter that answers an unknown path or method.

A port in OCRSVC_USUAL_PORTS decides first; at other ports the headers, the API key and the body decide.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from flask import Flask
from werkzeug.routing import Rule

from ocrsvc.errors import OcrsvcError
from ocrsvc.http.request import Request
from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

FORMS: Final = frozenset({"multipart/form-data", "application/x-www-form-urlencoded"})


class Router:
    """Chooses the adapter that answers a request. Create it after all adapters are registered.

    Each adapter is a Flask blueprint of the same name, which formats its own errors.
    """

    def __init__(self, app: Flask, settings: Settings) -> None:
        self._usual_ports = settings.usual_ports
        self._rules: dict[str, list[Rule]] = {}
        # For each path and method, the URL rules by adapter.
        rivals: dict[tuple[str, str], dict[str, Rule]] = {}
        for rule in app.url_map.iter_rules():
            name = rule.endpoint.partition(".")[0]
            self._rules.setdefault(name, []).append(rule)
            for method in rule.methods or ():
                rivals.setdefault((rule.rule, method), {})[name] = rule
        self._shared = {place: rules for place, rules in rivals.items() if len(rules) > 1}

    def by_head(self, request: Request) -> None:
        """Choose the adapter by port, headers and key. An unknown route gets the only adapter at its port or path."""
        if request.routing_exception is None:
            if rivals := self._rivals(request):
                request.url_rule = rivals[_best_by_head(request, self._allowed(request, rivals))]
        elif len(owners := self._adapters_at_port(request) or _owners(self._rules, request.path)) == 1:
            # No route matched: set any rule of this adapter, whose blueprint then formats the error.
            request.url_rule = self._rules[next(iter(owners))][0]

    def by_body(self, request: Request) -> None:
        """If several adapters are still possible for a POST, choose the first that its body fits."""
        rivals = self._rivals(request) if request.method == "POST" else {}
        left = self._allowed(request, rivals)
        if len(left) > 1:
            name = next((name for name in _by_body(request, left) if name in left), None)
            request.url_rule = rivals[name] if name else request.url_rule

    def _rivals(self, request: Request) -> Mapping[str, Rule]:
        """If several adapters have the request's path and method: the URL rule of each, by adapter; else nothing."""
        return {} if request.url_rule is None else self._shared.get((request.url_rule.rule, request.method), {})

    def _allowed(self, request: Request, rivals: Collection[str]) -> Collection[str]:
        """Filter the rivals by the request's port, then by its API key; a filter that leaves none is skipped."""
        left = self._adapters_at_port(request).intersection(rivals) or rivals
        if request.key is not None and request.key.adapters is not None:
            return request.key.adapters.intersection(left) or left
        return left

    def _adapters_at_port(self, request: Request) -> frozenset[str]:
        port = request.environ.get("SERVER_PORT", "")
        return frozenset(name for name in self._usual_ports if str(adapters()[name].port) == port)


def _best_by_head(request: Request, rivals: Collection[str]) -> str:
    """Choose among adapters by the request's method and the body's type."""
    if request.method != "POST":
        # The web page's view comes first, because it answers both browsers and programs.
        return "page" if "page" in rivals else min(rivals, key=_rank)
    forms = _taking_forms().intersection(rivals) if request.mimetype in FORMS else ()
    return min(forms or rivals, key=_rank)


def _rank(name: str) -> tuple[bool, str]:
    """Sort key: by name, but adapters that leave shared paths to others (`yields_paths`) come last."""
    entry = adapters().get(name)
    return (entry is not None and entry.yields_paths, name)


def _by_body(request: Request, left: Collection[str]) -> Iterator[str]:
    """Yield adapters that the body fits, best first; JSON fits the adapters in `left` that define its members."""
    if request.mimetype == "multipart/form-data":
        yield from _taking_forms()
        return
    raw = None
    # An unreadable body is ignored here; the chosen adapter reports the error.
    with suppress(OcrsvcError):
        raw, members = request.content.raw, request.content.members
        sent = ((name, entry.members) for name, entry in adapters().items() if name in left)
        yield from (name for name, wanted in sent if not members.keys().isdisjoint(wanted))
    if request.mimetype == "application/x-www-form-urlencoded" or raw is not None:
        yield from _taking_forms()


def _taking_forms() -> frozenset[str]:
    """The adapters that get requests with a form or an image as body if they share a path with other adapters."""
    return frozenset(name for name, entry in adapters().items() if entry.takes_forms)


def _owners(rules_by_adapter: Mapping[str, Iterable[Rule]], path: str) -> frozenset[str]:
    """The adapters with exactly this path."""
    return frozenset(name for name, rules in rules_by_adapter.items() if any(rule.rule == path for rule in rules))
