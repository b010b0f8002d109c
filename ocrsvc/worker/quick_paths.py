"""The paths that the reserved threads answer: health, metrics and pages, which need neither the engine nor time.

Every other path is slow until it is listed here, so a new route can never delay a health check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from ocrsvc.access.key_routes import HEALTH_PATHS
from ocrsvc.registry import adapters

_METHODS: Final = frozenset({"GET", "HEAD"})
_PAGES: Final = ("/", "/index.html", "/ops")
_PAGE_FILES: Final = ("/static/", "/ops/static/")
# What operators look at comes from memory. /ops/keys is not among them: it asks the store of the keys.
_FIGURES: Final = ("/version", "/openapi.json", "/metrics", "/ops/overview", "/ops/workers", "/ops/quarantine")


def quick_paths(names: Iterable[str]) -> frozenset[str]:
    """The whole paths that are quick where the adapters of these names are on; files of pages are quick besides."""
    of_adapters = (path for name in names for path in adapters()[name].health_paths)
    return frozenset((*HEALTH_PATHS, *of_adapters, *_PAGES, *_FIGURES))


def is_quick(method: str, path: str, known: frozenset[str]) -> bool:
    """Whether a request without a body is known to be quick.

    Args:
        method: Of the request.
        path: As the client sent it.
        known: The quick paths.
    """
    routed = routed_path(path)
    return method in _METHODS and (routed in known or routed.startswith(_PAGE_FILES))


def routed_path(path: str) -> str:
    """The path that the router sees: percent-decoded, with one slash at its beginning."""
    return "/" + unquote_to_bytes(path).decode("latin-1").lstrip("/")
