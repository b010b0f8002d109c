"""What is decided about models while the service runs: a file that all workers and the command line share.

Labels, explicit loads and unloads, policies that clients set, and the verdicts on versions. It survives restarts. It is
changed under a lock (flock), replaced in one step, and followed by looking when it was last replaced.
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from ocrsvc.engines.model.description import first_fault
from ocrsvc.engines.ppocr.runtime.model_cache import default_folder
from ocrsvc.errors import OperatorError
from ocrsvc.models.policy import Policies

LOGGER: Final = logging.getLogger("ocrsvc.models")
FILE: Final = "state.json"
DAMAGED_FILE: Final = "state.json.damaged"
MOST_VERDICTS: Final = 500
_LOCK: Final = "state.lock"
_MOST_BYTES: Final = 1 << 22
_LOCK_WAIT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.01
# Time of the file's replacement (ns), its inode and its size; other values when it was replaced again.
Generation = tuple[int, int, int]
_NONE: Final = (0, 0, 0)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Verdict(_Record):
    """Whether a version may take traffic, and why not, or what it was compared with; `at` is in Unix seconds.

    `kind` is of a refused version (proof/prover.py), which is tried again when the `basis` of its refusal changes.
    """

    accepted: bool
    reason: str = ""
    figures: dict[str, float] = {}
    at: float = 0.0
    kind: str = ""
    basis: str = ""


class ModelState(_Record):
    """All that is in the file: verdicts by digest; labels by model, of which 0 takes the policy's away.

    `loads` and `unloads` are NAME or NAME/VERSION, whatever the policy says; `policies` is what a client has set in
    place of the repository's file, `last_policies` that file when it was right the last time.
    """

    verdicts: dict[str, Verdict] = {}
    labels: dict[str, dict[str, int]] = {}
    loads: frozenset[str] = frozenset()
    unloads: frozenset[str] = frozenset()
    policies: Policies | None = None
    last_policies: Policies | None = None

    def updated(self, **members: object) -> ModelState:
        """With other values of some attributes."""
        return self.model_copy(update=members)

    def without_verdicts(self, digests: Iterable[str]) -> ModelState:
        """As if these versions had not been proved."""
        gone = frozenset(digests)
        return self.updated(verdicts={key: one for key, one in self.verdicts.items() if key not in gone})


class StateStore:
    """The file, in a folder of its own, which is made when first written to; for any thread and process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / FILE
        self._read: tuple[Generation, ModelState] = (_NONE, ModelState())
        self._unreadable: Generation = _NONE

    def generation(self) -> Generation:
        """One look at the file (stat), which does not read it."""
        try:
            found = self._file.stat()
        except OSError:
            return _NONE
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> ModelState:
        """The state now; that from before where the file cannot be read, and empty where it is damaged."""
        return self.read_with_generation()[1]

    def read_with_generation(self) -> tuple[Generation, ModelState]:
        """The same, and which generation it is."""
        generation = self.generation()
        if generation != self._read[0]:
            try:
                self._read = self._load()
            except OSError as error:
                if generation != self._unreadable:
                    LOGGER.error("the state of the models cannot be read, and stays as it was: %s", error)
                self._unreadable = generation
        return self._read

    def change(self, edit: Callable[[ModelState], ModelState]) -> ModelState:
        """Replace the state by what `edit` makes of it, under the lock. Raises OperatorError, also after 5 s."""
        with self.locked(_LOCK, wait_s=_LOCK_WAIT_S) as is_ours:
            try:
                if not is_ours:
                    raise TimeoutError("another process has held its lock for five seconds")
                before = self._load()[1]
                after = _bounded(edit(before))
                if after != before:
                    self._replace(after)
                return after
            except OSError as error:
                raise self._not_written(error) from error

    def record_verdict(self, digest: str, verdict: Verdict) -> None:
        """Keep the verdict on a version. Raises OperatorError, as `change`."""
        self.change(lambda state: state.updated(verdicts={**state.verdicts, digest: verdict}))

    def forget_verdict(self, digest: str) -> None:
        """Have a version proved again. Raises OperatorError, as `change`."""
        self.change(lambda state: state.without_verdicts([digest]))

    @contextlib.contextmanager
    def locked(self, name: str, note: str = "", wait_s: float = 0.0) -> Iterator[bool]:
        """Whether this process holds a lock of the machine's workers while the block lasts; see `note_of`.

        Raises OperatorError where the folder cannot be written to, or others could have put a verdict there.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.folder.stat()
            if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
                raise OSError("it belongs to another user, or everybody may write there")
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
            "Let this user write there, or name another folder with OCRSVC_MODELS_STATE.",
        )

    def note_of(self, name: str) -> str:
        """The note of the process that holds a lock now; "" while none does."""
        try:
            with (self.folder / name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return ""

    def _load(self) -> tuple[Generation, ModelState]:
        """Raises OSError where it cannot be read, which says nothing of what is in it."""
        generation = self.generation()
        try:
            with self._file.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return _NONE, ModelState()
        try:
            return generation, ModelState.model_validate_json(content)
        except ValidationError as error:
            LOGGER.error("%s is damaged, and counts as empty: %s", self._file, first_fault(error))
            return generation, ModelState()

    def _replace(self, state: ModelState) -> None:
        """Write it beside, and move it to its place when it is on the disk. A damaged one is put aside first."""
        content = state.model_dump_json().encode()
        if len(content) > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it would have more than {_MOST_BYTES} bytes")
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
    """The folder chosen, else one for the repository's path in the user's cache folder. Raises OperatorError."""
    if chosen is not None:
        return chosen
    cache = default_folder()
    if cache is None:
        raise OperatorError("There is no home for the state of the models.", "Name a folder with OCRSVC_MODELS_STATE.")
    key = hashlib.sha256(os.fsencode(repository.resolve())).hexdigest()[:16]
    return cache / f"models-{key}"


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _bounded(state: ModelState) -> ModelState:
    """Without the oldest verdicts, if there are too many; refusals go first: what serves goes on serving."""
    if len(state.verdicts) <= MOST_VERDICTS:
        return state
    newest = sorted(state.verdicts.items(), key=lambda item: (item[1].accepted, item[1].at))[-MOST_VERDICTS:]
    return state.updated(verdicts=dict(newest))


def _try_lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
