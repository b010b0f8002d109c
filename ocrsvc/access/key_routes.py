"""Which routes answer without a key, and which scope each of the others needs; over HTTP and gRPC.

Every route is closed that is not named here or in the registry (`AdapterEntry.health_paths`). A path is compared as a
whole, as it is routed: nothing in front of it or behind it opens another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ocrsvc.access.api_keys import Scope
from ocrsvc.plugins import adapters

HEALTH_PATHS: Final[Mapping[str, str]] = {
    "/healthz": "Liveness: an orchestrator's probe that failed for want of a key would end the process.",
    "/readyz": "Readiness: load balancers and rolling upgrades wait for it.",
    "/grpc.health.v1.Health/Check": "gRPC's standard health check: the same, for probes that speak gRPC.",
}
"""The service's own routes that are always open, and why; those of formats are in the registry."""

JOBS: Final = "/v1/jobs"
"""Where the native API's paths of jobs begin; those of formats are in the registry."""

OPERATORS: Final = ("/ops", "/metrics")
"""Where operators' paths begin."""

_FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")


class Routes:
    """The routes of the adapters of these names; some of them are for operators where there is a model repository.

    `health` are the paths and methods that are open; in `key_headers` formats have a key of their own, in capitals.
    """

    def __init__(self, names: Iterable[str], *, has_models: bool = False) -> None:
        entries = [adapters()[name] for name in names]
        self.health = frozenset(HEALTH_PATHS).union(*(entry.health_paths for entry in entries))
        of_models = (path for entry in entries for path in entry.operate_paths) if has_models else ()
        self._operate = (*OPERATORS, *of_models)
        self._jobs = (JOBS, *(path for entry in entries for path in entry.job_paths))
        self._key_fields = {entry.name: entry.key_field for entry in entries}
        self.key_headers = tuple(dict.fromkeys(field.upper() for field in self._key_fields.values() if field))
        self._key_body_paths = frozenset(path for entry in entries for path in entry.key_body_paths)

    def is_open(self, path: str) -> bool:
        """Whether this is answered without a key, by any method."""
        return path in self.health

    def key_field_of(self, adapter: str | None) -> str:
        """What an adapter's format calls the key; empty where it has no place of its own for one."""
        return self._key_fields.get(adapter or "", "")

    def may_have_key_in_body(self, path: str, method: str, content_type: str) -> bool:
        """Whether the key may be in a form, so that it cannot be checked before the body is there."""
        return method == "POST" and path in self._key_body_paths and content_type.lower().startswith(_FORMS)

    def scope_of(self, path: str) -> Scope:
        """The scope that a key must have for this path, as it was routed."""
        if path.startswith(self._operate):
            return "operate"
        return "jobs" if path.startswith(self._jobs) else "read"
