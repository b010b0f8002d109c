"""Refuses a version that has ended workers while they loaded it, though it had proved itself: no worker would live.

Each load has a file in the state folder while it lasts, locked by the process that loads. A process that ends in order
removes it; one that is left without a lock is of a process that died, and counts while the arbiter is the same: what
ends the whole service says nothing of a model.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from ocrsvc.errors import EngineUnavailable
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.candidate_prover import make_verdict
from ocrsvc.model_serving.state import StateStore

LOGGER: Final = logging.getLogger("ocrsvc.models")

MOST_DEATHS: Final = 3
"""One may be chance: a worker that the kernel chose when memory ran out."""

FOLDER: Final = "loading"


class LoadDeaths:
    """Of one machine; for any thread and process.

    Args:
        store: Whose folder it is, and where verdicts are kept.
        basis: Of verdicts; see `verdict_basis.py`.
    """

    def __init__(self, store: StateStore, basis: str) -> None:
        self._store, self._basis = store, basis
        self._folder = store.folder / FOLDER

    @contextlib.contextmanager
    def watching(self, version: ModelVersion) -> Iterator[None]:
        """A version is being loaded while the block lasts.

        Raises:
            EngineUnavailable: Processes have died of that before; the version is refused for all workers.
            OperatorError: The state cannot be written.
        """
        if version.is_built_in:
            yield
            return
        died = self._died(version)
        if len(died) >= MOST_DEATHS:
            self._refuse(version, died)
        with contextlib.ExitStack() as stack:
            # Where nothing can be written there is no verdict either.
            with contextlib.suppress(OSError):
                self._mark(version, stack)
            yield
        # It was loaded, or said why not.
        _remove(died)

    def _refuse(self, version: ModelVersion, died: list[Path]) -> None:
        reason = f"{len(died)} workers ended while they loaded it."
        LOGGER.error("REFUSED %s (crash): %s", version, reason)
        self._store.record_verdict(version.digest, make_verdict("crash", reason, self._basis))
        # Should somebody have it forgotten, it begins anew.
        _remove(died)
        raise EngineUnavailable(f"The model {version} is refused: {reason}", "See `ocrsvc models list`.")

    def _mark(self, version: ModelVersion, stack: contextlib.ExitStack) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark = self._folder / f"{version.digest}.{_arbiter()}.{secrets.token_hex(8)}"
        opened = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, opened)
        stack.callback(_remove, [mark])
        fcntl.flock(opened, fcntl.LOCK_EX)
        # The thread that loads does not keep a process that is told to end.
        remove = atexit.register(partial(_remove, [mark]))
        stack.callback(atexit.unregister, remove)

    def _died(self, version: ModelVersion) -> list[Path]:
        with contextlib.suppress(OSError):
            left = [mark for mark in self._folder.glob(f"{version.digest}.*") if _is_left(mark)]
            ours = [mark for mark in left if mark.name.split(".")[1] == _arbiter()]
            _remove([mark for mark in left if mark not in ours])
            return ours
        return []


def _arbiter() -> str:
    """The process that this one was forked from, and when that began."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        return f"{parent}-{Path(f'/proc/{parent}/stat').read_text().rpartition(')')[2].split()[19]}"
    return str(parent)


def _is_left(mark: Path) -> bool:
    try:
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(marks: list[Path]) -> None:
    for mark in marks:
        with contextlib.suppress(OSError):
            mark.unlink()
