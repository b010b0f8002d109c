"""Compares a plan with the sources as they are now, by names, sizes and times: what is new, missing, or changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import numpy as np

from ocrsvc.batch.sources.address_access import access_of
from ocrsvc.batch.sources.file_access import FoundFile
from ocrsvc.batch.sources.file_planner import FilePlanner
from ocrsvc.batch.sources.found_files import find_all
from ocrsvc.batch.sources.loading import LINKED
from ocrsvc.batch.sources.locator import Locator
from ocrsvc.batch.sources.opening import in_order_of_names
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.source_request import SourceRequest
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import BadOption, RunChanged

_Item = TypeVar("_Item")
_BATCH: Final = 20_000
_MOST_EXAMPLES: Final = 3
# Of a file that could not be read when it was planned.
_UNKNOWN: Final = 0


@dataclass(slots=True)
class SourceChanges:
    """How sources differ from a plan.

    Attributes:
        new, missing, changed: Counts of files; an archive is one file.
        examples: Names of a few of the new and the changed.
    """

    new: int = 0
    missing: int = 0
    changed: int = 0
    examples: list[str] = field(default_factory=list)

    def note_new(self, file: FoundFile) -> None:
        """Count a file that was not planned."""
        self.new += 1
        self._exemplify(file)

    def note_changed(self, file: FoundFile) -> None:
        """Count a file that is another than was planned."""
        self.changed += 1
        self._exemplify(file)

    def check_none(self, address: str) -> None:
        """Raises RunChanged, with the numbers, if there are any."""
        if not (self.new or self.missing or self.changed):
            return
        names = f", such as {', '.join(self.examples)}" if self.examples else ""
        counts = (self.new, "new"), (self.changed, "changed"), (self.missing, "missing")
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        update = "Add new files with --update, g" if self.new else "G"
        raise RunChanged(
            f"Files have changed since the run in {address} was planned: {said}{names}.",
            f"{update}o on whatever has changed with --as-planned, or take another destination.",
        )

    def _exemplify(self, file: FoundFile) -> None:
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(file.name)


def find_changes(planned: Iterable[SourceFile], request: SourceRequest) -> SourceChanges:
    """What has changed since files were planned.

    Files of this machine are looked at, and nothing of those that were planned is read. Object stores, whose listing
    takes minutes, and standard input are left out: what is missing or has changed there fails when it is read. A sample
    is not asked for new files.

    Args:
        planned: All files of the plan.
        request: As they were planned.

    Raises:
        SourceGone: A source is not there any more.
    """
    index = _PlanIndex(planned, only_local=True)
    changes, counts = SourceChanges(), PlanningCounts()
    with closing(FilePlanner(request, counts)) as planner:
        for batch in _batches(find_all(request.sources, counts, only_local=True)):
            is_known, has_changed = index.compare([found for found, _ in batch])
            for at in np.flatnonzero(has_changed):
                changes.note_changed(batch[at][0])
            if request.sample is None:
                for at in np.flatnonzero(~is_known):
                    if next(planner.plan(*batch[at]), None) is not None:
                        changes.note_new(batch[at][0])
    changes.missing = index.missing
    return changes


def find_new(planned: Iterable[SourceFile], request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    """What is planned of the files that were not there when the others were planned, wherever they are.

    Args:
        planned: All files of the plan.
        request: As they were planned.
        counts: What is not planned of the new ones, counted meanwhile.

    Raises:
        SourceGone: A source is not there any more.
        BadOption: A sample is asked for, which has no new files.
    """
    if request.sample is not None:
        raise BadOption("A sample is not brought up to date.", "Leave --update out, or take another destination.")
    files = _find_new(planned, request, counts)
    yield from in_order_of_names(files) if request.is_sorted else files


def _find_new(planned: Iterable[SourceFile], request: SourceRequest, counts: PlanningCounts) -> Iterator[SourceFile]:
    index = _PlanIndex(planned, only_local=False)
    with closing(FilePlanner(request, counts)) as planner:
        for batch in _batches(find_all(request.sources, PlanningCounts())):
            is_known, _ = index.compare([found for found, _ in batch])
            for at in np.flatnonzero(~is_known):
                yield from planner.plan(*batch[at])


class _PlanIndex:
    """The addresses of a plan and the versions at them, as hashes: 17 bytes for each."""

    def __init__(self, planned: Iterable[SourceFile], *, only_local: bool) -> None:
        keys = [np.array(batch, np.int64) for batch in _batches(_keys_of(planned, only_local=only_local))]
        table = np.concatenate(keys) if keys else np.zeros((0, 2), np.int64)
        self._addresses, first = np.unique(table[:, 0], return_index=True)
        self._versions = table[first, 1]
        self._seen = np.zeros(len(first), np.bool_)

    @property
    def missing(self) -> int:
        """How many were not looked up."""
        return int((~self._seen).sum())

    def compare(self, files: list[FoundFile]) -> tuple[np.ndarray, np.ndarray]:
        """Of each file: whether it was planned, and whether it has changed since."""
        keys = np.array([hash(file.address) for file in files], np.int64)
        now = np.array([_version_key(file.version) for file in files], np.int64)
        places = np.searchsorted(self._addresses, keys)
        is_known = places < len(self._addresses)
        is_known[is_known] = self._addresses[places[is_known]] == keys[is_known]
        places = places[is_known]
        self._seen[places] = True
        has_changed = is_known.copy()
        planned = self._versions[places]
        has_changed[is_known] = (planned != now[is_known]) & (planned != _UNKNOWN)
        return is_known, has_changed


def _keys_of(planned: Iterable[SourceFile], *, only_local: bool) -> Iterator[tuple[int, int]]:
    last = ""
    for file in planned:
        locator = Locator.of(file.locator)
        is_linked = locator.kind == LINKED
        address = locator.place if is_linked else locator.address
        if address != last and (not only_local or access_of(address).is_local):
            yield hash(address), _UNKNOWN if is_linked else _version_key(file.version)
        last = address


def _version_key(version: str) -> int:
    return hash(version) or 1 if version else _UNKNOWN


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch
