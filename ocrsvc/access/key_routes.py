"""Which HTTP and gRPC routes need no API key, and which scope the others need.

All routes need a key, except the health checks here and in the plugins (`AdapterEntry.health_paths`). Paths are
compared as a whole, so that no prefix or suffix opens another path.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ocrsvc.access.api_keys import CredentialsFunction, Scope, no_credentials
from ocrsvc.plugins import adapters, resolve
from ocrsvc.settings.settings import Settings

HEALTH_PATHS: Final[Mapping[str, str]] = {
    "/healthz": "Liveness: an orchestrator's probe that failed for lack of a key would end the process.",
    "/readyz": "Readiness: load balancers and rolling upgrades wait for it.",
    "/grpc.health.v1.Health/Check": "gRPC's standard health check.",
}
"""The service's own routes that need no key, and why; adapters declare theirs in their plugin entry."""

JOBS: Final = "/v1/jobs"
"""Prefix of the native API's job routes; adapters declare theirs in their plugin entry."""

OPERATORS: Final = ("/ops", "/metrics")
"""Prefixes of operators' routes."""

_FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")


class Routes:
    """The routes of the enabled adapters. `has_models` adds operators' routes of a model repository.

    `health`: the paths and gRPC methods that need no key. `credentials`: per adapter, a function that finds the API
    key where the wire format puts it. Raises EntryError if such a function cannot be imported.
    """

    def __init__(self, names: Iterable[str], *, has_models: bool = False) -> None:
        entries = [adapters()[name] for name in names]
        self.health = frozenset(HEALTH_PATHS).union(*(entry.health_paths for entry in entries))
        of_models = (path for entry in entries for path in entry.operate_paths) if has_models else ()
        self._operate = (*OPERATORS, *of_models)
        self._jobs = (JOBS, *(path for entry in entries for path in entry.job_paths))
        self.credentials: Mapping[str, CredentialsFunction] = {
            entry.name: resolve(entry.credentials) for entry in entries if entry.credentials
        }
        self._key_body_paths = frozenset(path for entry in entries for path in entry.key_body_paths)

    def is_open(self, path: str) -> bool:
        """Whether a path needs no key, with any method."""
        return path in self.health

    def credentials_of(self, adapter: str | None) -> CredentialsFunction:
        """The function that finds the API key where this wire format puts it, such as in a query parameter."""
        return self.credentials.get(adapter or "", no_credentials)

    def may_have_key_in_body(self, path: str, method: str, content_type: str) -> bool:
        """Whether the key may be in a form field, which can be checked only after the body was received."""
        return method == "POST" and path in self._key_body_paths and content_type.lower().startswith(_FORMS)

    def scope_of(self, path: str) -> Scope:
        """The scope that a routed path needs."""
        if path.startswith(self._operate):
            return "operate"
        return "jobs" if path.startswith(self._jobs) else "read"


def routes_of(settings: Settings) -> Routes:
    """The routes that the settings enable."""
    return Routes(settings.adapters, has_models=settings.models is not None)
