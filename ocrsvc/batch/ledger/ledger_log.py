"""Writes what one owner has to say: results first, then what the ledger says of them, each made durable by `commit`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.batch.ledger.entries import CONFIDENCE_SCALE, CONTENT, ENTRY, LEASE, PAGE, FrameKind, PageState
from ocrsvc.batch.ledger.frames import to_frame
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.store.contract import AppendLog, Store
from ocrsvc.batch.tasks import PageResult

LEDGER: Final = "_ocrsvc/ledger/"
RESULTS: Final = "_ocrsvc/results/"
ROLL_BYTES: Final = 64 * 1024 * 1024
"""A results log of so many bytes is followed by the next: one whose parts are all in the output is removed."""
DIGEST_CHARACTERS: Final = 32
_MOST_ENTRIES: Final = 10_000
_RECORD: Final = 1


def results_log(owner: str, number: int) -> str:
    """The name of an owner's results log, from 1."""
    return f"{RESULTS}{owner}-{number:05d}"


def parse_results_log(name: str) -> tuple[str, int]:
    """The name of its owner's log, and its number."""
    owner, _, number = name.removeprefix(RESULTS).rpartition("-")
    return LEDGER + owner, int(number)


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """A part that is in the output.

    Attributes:
        part: Its number.
        done, failed: Pages.
        files: Its files of the output, each with its size in bytes and its SHA-256 in hexadecimal, of which the ledger
            keeps the first DIGEST_CHARACTERS.
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
        roll_bytes: Of a results log.

    Raises:
        OSError: From every method that writes. The log is then given up, as its end may be torn.
    """

    def __init__(self, store: Store, owner: Owner, facts: Mapping[str, Any], roll_bytes: int = ROLL_BYTES) -> None:
        self._store, self._owner, self._roll_bytes = store, owner, roll_bytes
        self._log = store.open_log(f"{LEDGER}{owner.name}")
        self._results: AppendLog | None = None
        self._results_number = 0
        self._entries: list[tuple[object, ...]] = []
        self._names: dict[str, int] = {"": 0}
        self._new_names: list[str] = []
        self._is_given_up = self._is_changed = False
        with self._writing():
            self._add(FrameKind.OWNER, orjson.dumps({"owner": owner.to_values()} | dict(facts)))
            self._log.commit()

    def note_lease(self, part: int, since: float, until: float) -> None:
        """The part is the owner's from `since` until then (Unix time); until = since gives it back."""
        with self._writing():
            self._add(FrameKind.LEASE, np.array([(part, since, until)], LEASE).tobytes())

    def note_begun(self, pages: Iterable[int], *, alone: bool = False) -> None:
        """The owner begins to read these pages; alone: this page, and nothing beside it. Outlives the process."""
        with self._writing():
            kind = FrameKind.BEGUN_ALONE if alone else FrameKind.BEGUN
            self._add(kind, np.fromiter(pages, PAGE).tobytes())
            self._log.flush()

    def note_content(self, page: int, digest: bytes) -> None:
        """The file whose first page this is has this content. With the next commit."""
        with self._writing():
            self._add(FrameKind.CONTENTS, np.array([(page, digest)], CONTENT).tobytes())

    def note_page(self, result: PageResult, attempts: int, now: float) -> None:
        """A page's result, after so many attempts. With the next commit."""
        with self._writing():
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
                round(result.confidence * CONFIDENCE_SCALE),
                result.lines,
                result.seconds,
                offset,
                len(result.record),
                now - self._owner.began,
                self._number_of(result.worker),
                self._number_of(result.error),
            )
        )
        if offset > self._roll_bytes:
            self.commit()
            self._results.close()
            self._results = None
        elif len(self._entries) >= _MOST_ENTRIES:
            self.commit()

    def note_finished(self, part: FinishedPart) -> None:
        """The part is in the output. With the next commit."""
        with self._writing():
            files = {name: (size, digest[:DIGEST_CHARACTERS]) for name, (size, digest) in part.files.items()}
            said = {"part": part.part, "done": part.done, "failed": part.failed, "files": files}
            self._add(FrameKind.FINISHED, zlib.compress(orjson.dumps(said)))

    def commit(self) -> None:
        """Make all of it durable: the results before the entries that name them."""
        with self._writing():
            if self._entries and self._results is not None:
                self._results.commit()
                if self._new_names:
                    self._add(FrameKind.NAMES, orjson.dumps(self._new_names))
                    self._new_names = []
                number = self._results_number.to_bytes(4, "little")
                self._add(FrameKind.PAGES, number + np.array(self._entries, ENTRY).tobytes())
                self._entries = []
            if self._is_changed:
                self._log.commit()
                self._is_changed = False

    def end(self) -> None:
        """The last word: the owner has ended in order. Nothing is said in a log that was given up."""
        if not self._is_given_up:
            self.commit()
            with self._writing():
                self._add(FrameKind.ENDED, b"")
                self._log.commit()

    def close(self) -> None:
        """Give the files back."""
        self._log.close()
        if self._results is not None:
            self._results.close()

    def _add(self, kind: FrameKind, payload: bytes) -> None:
        self._log.append(to_frame(kind, payload))
        self._is_changed = True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Whatever cannot be written is the last thing that this log says."""
        assert not self._is_given_up, "its end may be torn"
        try:
            yield
        except BaseException:
            self._is_given_up = True
            raise

    def _number_of(self, name: str) -> int:
        if name not in self._names:
            # A name too many for an entry's two bytes counts as none: a worker or reason more than all others.
            if len(self._names) >= 0xFFFF:
                return 0
            self._names[name] = len(self._names)
            self._new_names.append(name)
        return self._names[name]
