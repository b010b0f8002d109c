"""How much memory versions of models take: estimated from their files, measured when they are loaded, remembered."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ocrsvc.errors import EngineUnavailable
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.loaded_version import LoadedVersion, MeasuredEngine
from ocrsvc.system.allocator import give_back
from ocrsvc.system.memory import read_private_bytes

FILES_FACTOR: Final = 11
"""Times the bytes of its files that a version is expected to take before it was ever loaded. See
docs/design/loaded-models.md for what was measured."""

LEAST_BYTES: Final = 8 << 20
"""That any version is expected to take at first."""

_KEPT: Final = 3


@dataclass(frozen=True, slots=True)
class Taken:
    """What one load of a version took.

    Attributes:
        held_bytes: Once it was loaded, and free memory was given back.
        most_bytes: Before that: loading leaves free memory behind, 95 MiB of it beside the 248 MiB of PP-OCRv6 small.
    """

    held_bytes: int
    most_bytes: int


VersionKey = tuple[str, int, str]
"""Name, number and the manifest's digest: a version whose files change is another one."""


def key_of(version: ModelVersion) -> VersionKey:
    """What a version is known by."""
    return version.name, version.number, version.digest


class ModelMemory:
    """What versions take, and what all of them may; the loading thread measures, any thread asks.

    Args:
        budget_bytes: For all that are loaded together; None is no limit.
        read_bytes: The memory of this process that models may be in.
        give_back: Returns what is free to the system, before it is read.
        copies: How many of its engine's processes load a version; 1 where it is loaded into this one.

    Attributes:
        budget_bytes, give_back: As above.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        read_bytes: Callable[[], int] = read_private_bytes,
        give_back: Callable[[], object] = give_back,
        copies: int = 1,
    ) -> None:
        self.budget_bytes, self.give_back = budget_bytes, give_back
        self._read_bytes, self._copies = read_bytes, copies
        # Tuples, which other threads may read meanwhile.
        self._measured: dict[VersionKey, tuple[Taken, ...]] = {}
        self._largest: dict[str, int] = {}

    def expected_bytes(self, version: ModelVersion) -> int:
        """What loading a version will take at most: what it took the last times, or an estimate rather too high.

        The files of some engines say nothing, so that it is no less than what the largest version of the same engine
        took.
        """
        known = self._measured.get(key_of(version))
        if known:
            return round(statistics.median(taken.most_bytes for taken in known))
        estimate = self._copies * max(LEAST_BYTES, FILES_FACTOR * _file_bytes(version))
        return max(estimate, self._largest.get(version.description.engine, 0))

    def check(self, version: ModelVersion) -> None:
        """Raises EngineUnavailable where a version can never be loaded within the budget.

        An estimate is not held against it: only what was measured, and before that the size of its files.
        """
        known = self._measured.get(key_of(version))
        needed = _held_bytes(known) if known else _file_bytes(version)
        if self.budget_bytes is not None and needed > self.budget_bytes:
            raise EngineUnavailable(
                f"The model {version} takes {needed} bytes, and all models of a worker may take "
                f"{self.budget_bytes} (OCRSVC_MODELS_MEMORY).",
                "Raise OCRSVC_MODELS_MEMORY, or have fewer engine threads.",
            )

    def is_room(self, needed_bytes: int, held_bytes: Iterable[int]) -> bool:
        """Whether so much more may be loaded beside what is held; beside nothing, always."""
        held = sum(held_bytes)
        return self.budget_bytes is None or not held or held + needed_bytes <= self.budget_bytes

    def before(self) -> int:
        """To be given to `measure` when a version is loaded."""
        self.give_back()
        return self._read_bytes()

    def measure(self, loaded: LoadedVersion, before_bytes: int) -> int:
        """What a version that was just loaded takes; remembered.

        Requests that were read meanwhile change the memory of this process, too: the median of the last loads counts,
        and never less than the files hold.
        """
        key, engine = key_of(loaded.version), loaded.version.description.engine
        taken = self._taken(loaded, before_bytes)
        known = self._measured[key] = (*self._measured.get(key, ())[1 - _KEPT :], taken)
        self._largest[engine] = max(taken.most_bytes, self._largest.get(engine, 0))
        return _held_bytes(known)

    def measure_again(self, loaded: LoadedVersion, size_bytes: int) -> int:
        """What a version takes now, where its engine knows; else what it took, as measured before."""
        engine = loaded.engine
        return engine.memory_bytes() if isinstance(engine, MeasuredEngine) else size_bytes

    def _taken(self, loaded: LoadedVersion, before_bytes: int) -> Taken:
        if isinstance(loaded.engine, MeasuredEngine):
            now_bytes = loaded.engine.memory_bytes()
            return Taken(now_bytes, now_bytes)
        most_bytes = self._read_bytes() - before_bytes
        held_bytes = max(_file_bytes(loaded.version), self.before() - before_bytes)
        return Taken(held_bytes, max(held_bytes, most_bytes))


def _held_bytes(known: Iterable[Taken]) -> int:
    return round(statistics.median(taken.held_bytes for taken in known))


def _file_bytes(version: ModelVersion) -> int:
    """The size of the files that a version reads: those of its manifest, or those that its description names."""
    total = 0
    for name in version.digests or version.description.files:
        path = version.folder / name
        total += path.stat().st_size if path.is_file() and not _is_reference(version, name) else 0
    return total


def _is_reference(version: ModelVersion, name: str) -> bool:
    return name.startswith(f"{version.description.reference.folder}/")
