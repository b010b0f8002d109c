"""Writes what one owner has to say: results first, then what the ledger says of them, each made durable by `commit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.batch.ledger.entries import ENTRY, LEASE, FrameKind, PageState
from ocrsvc.batch.ledger.frames import to_frame
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.store.contract import AppendLog, Store
from ocrsvc.batch.tasks import PageResult

LEDGER: Final = "_ocrsvc/ledger/"
RESULTS: Final = "_ocrsvc/results/"
ROLL_BYTES: Final = 64 * 1024 * 1024
"""A results log of so many bytes is followed by the next: one whose parts are all in the output is removed."""
_RECORD: Final = 1


def results_log(owner: str, number: int) -> str:
    """The name of an owner's results log, from 1."""
    return f"{RESULTS}{owner}-{number:05d}"


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """A part that is in the output.

    Attributes:
        part: Its number.
        done, failed: Pages.
        files: Its files of the output, each with its size in bytes and its SHA-256.
    """

    part: int
    done: int
    failed: int
    files: Mapping[str, tuple[int, str]]


class LedgerLog:
    """The logs of one owner; for one thread.

    Args:
        store: Where they are.
        owner: Whose they are.
        facts: What is to be known of the run of this owner: its version, its reader.

    Raises:
        OSError: From every method that writes. The log is then to be given up: its end may be torn.
    """

    def __init__(self, store: Store, owner: Owner, facts: Mapping[str, Any]) -> None:
        self._store, self._owner = store, owner
        self._log = store.open_log(f"{LEDGER}{owner.name}")
        self._results: AppendLog | None = None
        self._results_number = 0
        self._entries: list[tuple[object, ...]] = []
        self._names: dict[str, int] = {"": 0}
        self._new_names: list[str] = []
        self._add(FrameKind.OWNER, orjson.dumps({"owner": owner.to_values()} | dict(facts)))
        self._log.commit()

    def note_lease(self, part: int, since: float, until: float) -> None:
        """The part is the owner's from `since` until then (Unix time); until = since gives it back."""
        self._add(FrameKind.LEASE, np.array([(part, since, until)], LEASE).tobytes())

    def note_page(self, result: PageResult, attempts: int, now: float) -> None:
        """A page's result, after so many attempts. With the next commit."""
        if self._results is None:
            self._results_number += 1
            self._results = self._store.open_log(results_log(self._owner.name, self._results_number))
        offset = self._results.append(to_frame(_RECORD, result.record))
        state = PageState.FAILED if result.error else PageState.DONE
        self._entries.append(
            (
                result.index,
                state,
                min(attempts, 255),
                round(result.confidence * 65535),
                result.lines,
                result.seconds,
                offset,
                len(result.record),
                now - self._owner.began,
                self._number_of(result.worker),
                self._number_of(result.error),
            )
        )
        if offset > ROLL_BYTES:
            self.commit()
            self._results.close()
            self._results = None

    def note_finished(self, part: FinishedPart) -> None:
        """The part is in the output. With the next commit."""
        said = {"part": part.part, "done": part.done, "failed": part.failed, "files": dict(part.files)}
        self._add(FrameKind.FINISHED, orjson.dumps(said))

    def commit(self) -> None:
        """Make all of it durable: the results before the entries that name them."""
        if self._entries and self._results is not None:
            self._results.commit()
            if self._new_names:
                self._add(FrameKind.NAMES, orjson.dumps(self._new_names))
                self._new_names = []
            number = self._results_number.to_bytes(4, "little")
            self._add(FrameKind.PAGES, number + np.array(self._entries, ENTRY).tobytes())
            self._entries = []
        self._log.commit()

    def end(self) -> None:
        """The last word: the owner has ended in order."""
        self._add(FrameKind.ENDED, b"")
        self.commit()
        self.close()

    def close(self) -> None:
        """Give the files back."""
        self._log.close()
        if self._results is not None:
            self._results.close()

    def _number_of(self, name: str) -> int:
        if name not in self._names:
            # A name too many for an entry's two bytes counts as none: a worker or reason more than all others.
            if len(self._names) >= 0xFFFF:
                return 0
            self._names[name] = len(self._names)
            self._new_names.append(name)
        return self._names[name]

    def _add(self, kind: FrameKind, payload: bytes) -> None:
        self._log.append(to_frame(kind, payload))
