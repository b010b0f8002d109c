"""What LoadedModels reports: leases, loads and unloads."""

from __future__ import annotations

from ocrsvc.errors import OcrsvcError
from ocrsvc.model_repository.version import ModelVersion


class LoadObserver:
    """Takes no notice; what counts or watches inherits from it. Any thread calls, and must not be held up."""

    def note_lease(self, version: ModelVersion, *, is_hit: bool) -> None:
        """A request begins to read with a version, which was loaded already if that is a hit."""

    def note_load(self, version: ModelVersion, seconds: float, failure: OcrsvcError | None) -> None:
        """A version was loaded, or could not be."""

    def note_unload(self, version: ModelVersion, why: str) -> None:
        """A version was closed: "memory", "retired", or at the "end" of the worker."""
