"""Runtime decisions about models, in a file shared by all workers and the command line.

It holds labels, explicit loads and unloads, policies set by clients, and the results of proofs, and survives restarts.
It is changed under a lock (flock) and replaced atomically; readers poll its modification time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ocrsvc.engines.model.description import first_fault
from ocrsvc.engines.ppocr.runtime.model_cache import default_folder
from ocrsvc.errors import OperatorError
from ocrsvc.models.policy import Policies

LOGGER: Final = logging.getLogger("ocrsvc.models")
FILE: Final = "state.json"
DAMAGED_FILE: Final = "state.json.damaged"
MAX_VERDICTS: Final = 500
_LOCK: Final = "state.lock"
_MAX_BYTES: Final = 1 << 22
_LOCK_WAIT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.01
# The file's modification time (ns), inode and size, which change when it is replaced.
Generation = tuple[int, int, int]
_NONE: Final = (0, 0, 0)
# Why a version is refused: files do not match the manifest; a reference page is missing or unreadable; it does not
# open; it fails on a page; it returns invalid results; it reads too little; it is too slow; it takes too much memory;
# its process crashed; it exceeded the time limit.
RefusalKind = Literal["files", "reference", "open", "failed", "nonsense", "text", "slow", "memory", "crash", "late"]
# Failures after which a version is proved again, as it is not at fault: it was removed or replaced; the machine
# prevented the measurement; its process was killed (if twice, it is refused).
FailureKind = RefusalKind | Literal["gone", "unknown", "killed"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Verdict(_Record):
    """Whether a version may take traffic, and the reason or summary of its proof; `at` is in Unix seconds.

    `kind` is a RefusalKind. `basis` is the proof's cache key: when the key changes, the version is proved again.
    """

    accepted: bool
    reason: str = ""
    figures: dict[str, float] = {}
    at: float = 0.0
    kind: str = ""
    basis: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a proof; `kind` is the fault, None if the version may serve. Names in `figures` end in a unit."""

    kind: FailureKind | None
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


class Stopped(Exception):
    """The proof of a model version was aborted, because the worker stops."""


class ModelState(_Record):
    """The state file's contents; `verdicts` are by version digest.

    `labels` has version numbers by model and label; 0 removes a label of the policy. `loads` and `unloads` contain NAME
    or NAME/VERSION, and override policies. `policies`, set by a client, replaces the repository's policy file;
    `last_policies` is the last valid content of that file.
    """

    verdicts: dict[str, Verdict] = {}
    labels: dict[str, dict[str, int]] = {}
    loads: frozenset[str] = frozenset()
    unloads: frozenset[str] = frozenset()
    policies: Policies | None = None
    last_policies: Policies | None = None

    def updated(self, **members: object) -> ModelState:
        """A copy with some attributes replaced."""
        return self.model_copy(update=members)

    def without_verdicts(self, digests: Iterable[str]) -> ModelState:
        """A copy without the verdicts on the versions with these digests."""
        removed = frozenset(digests)
        return self.updated(verdicts={key: verdict for key, verdict in self.verdicts.items() if key not in removed})


class StateStore:
    """The state file, in its own folder, created at the first write. Safe for any thread and process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / FILE
        self._read: tuple[Generation, ModelState] = (_NONE, ModelState())
        self._unreadable: Generation = _NONE

    def generation(self) -> Generation:
        """The state file's generation now, from stat."""
        try:
            status = self._file.stat()
        except OSError:
            return _NONE
        return status.st_mtime_ns, status.st_ino, status.st_size

    def read(self) -> ModelState:
        """The current state; the state of the last read if reading fails; an empty state if the file is damaged."""
        return self.read_with_generation()[1]

    def read_with_generation(self) -> tuple[Generation, ModelState]:
        """As `read`; also returns the generation of the state file, which changes with each write."""
        generation = self.generation()
        if generation != self._read[0]:
            try:
                self._read = self._load()
            except OSError as error:
                if generation != self._unreadable:
                    LOGGER.error("the state of the models cannot be read, so the last one stays in use: %s", error)
                self._unreadable = generation
        return self._read

    def change(self, edit: Callable[[ModelState], ModelState]) -> ModelState:
        """Replace the state by `edit(state)`, and return it. Raises OperatorError, also after 5 s without the lock."""
        with self.locked(_LOCK, wait_s=_LOCK_WAIT_S) as is_ours:
            try:
                if not is_ours:
                    raise TimeoutError("another process has held its lock for 5 s")
                before = self._load()[1]
                after = _bounded(edit(before))
                if after != before:
                    self._replace(after)
                return after
            except OSError as error:
                raise self._not_written(error) from error

    def record_verdict(self, digest: str, verdict: Verdict) -> None:
        """Store the verdict on a version. Raises OperatorError."""
        self.change(lambda state: state.updated(verdicts={**state.verdicts, digest: verdict}))

    def forget_verdict(self, digest: str) -> None:
        """Remove the verdict on a version, which is then proved again. Raises OperatorError."""
        self.change(lambda state: state.without_verdicts([digest]))

    @contextlib.contextmanager
    def locked(self, name: str, note: str = "", wait_s: float = 0.0) -> Iterator[bool]:
        """Hold a lock, with a note for `note_of`, during the block; yields False if another process holds the lock.

        Raises OperatorError: the folder is not writable, or other users could write to it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = self.folder.stat()
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
                raise OSError("it belongs to another user, or is writable for everyone")
            opened = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_written(error) from error
        try:
            end_s, is_ours = time.monotonic() + wait_s, _try_lock(opened)
            while not is_ours and time.monotonic() < end_s:
                time.sleep(_LOCK_POLL_S)
                is_ours = _try_lock(opened)
            if is_ours:
                os.ftruncate(opened, 0)
                os.pwrite(opened, note.encode(), 0)
            yield is_ours
        finally:
            os.close(opened)

    def _not_written(self, error: OSError) -> OperatorError:
        return OperatorError(
            f"The state of the models in {self.folder} cannot be written: {error.strerror or error}.",
            "Make it writable for this user, or set OCRSVC_MODELS_STATE to another folder.",
        )

    def note_of(self, name: str) -> str:
        """The note that the process which holds this lock gave to `locked`; "" if the lock is free."""
        with contextlib.suppress(OSError):
            file = self.folder / name
            return "" if is_unlocked(file) else file.read_text(encoding="utf-8", errors="replace")
        return ""

    def _load(self) -> tuple[Generation, ModelState]:
        """Read the state file; a damaged file counts as empty. Raises OSError."""
        generation = self.generation()
        try:
            with self._file.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return _NONE, ModelState()
        try:
            return generation, ModelState.model_validate_json(content)
        except ValidationError as error:
            LOGGER.error("%s is damaged and treated as empty: %s", self._file, first_fault(error))
            return generation, ModelState()

    def _replace(self, state: ModelState) -> None:
        """Replace the file atomically and durably; a damaged file is kept under another name. Raises OSError."""
        content = state.model_dump_json().encode()
        if len(content) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it would have more than {_MAX_BYTES} bytes")
        with contextlib.suppress(FileNotFoundError):
            try:
                ModelState.model_validate_json(self._file.read_bytes())
            except ValidationError:
                self._file.replace(self.folder / DAMAGED_FILE)
        temporary = self.folder / f"{FILE}.{os.getpid()}.tmp"
        try:
            opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(opened, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(self._file)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self.folder)


def state_folder(repository: Path, chosen: Path | None) -> Path:
    """The chosen folder, or one in the user's cache folder for the repository's path. Raises OperatorError."""
    if chosen is not None:
        return chosen
    cache = default_folder()
    if cache is None:
        raise OperatorError(
            "This user has no home folder for the state of the models.", "Set OCRSVC_MODELS_STATE to a folder."
        )
    key = hashlib.sha256(os.fsencode(repository.resolve())).hexdigest()[:16]
    return cache / f"models-{key}"


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _bounded(state: ModelState) -> ModelState:
    """Drop the oldest verdicts if there are too many, refusals first, so that accepted versions keep serving."""
    if len(state.verdicts) <= MAX_VERDICTS:
        return state
    newest = sorted(state.verdicts.items(), key=lambda item: (item[1].accepted, item[1].at))[-MAX_VERDICTS:]
    return state.updated(verdicts=dict(newest))


def is_unlocked(file: Path) -> bool:
    """Whether no process holds a file's lock; False for a file that cannot be opened."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _try_lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
