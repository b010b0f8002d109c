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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from ocrsvc.engines.ppocr.runtime.model_cache import default_folder
from ocrsvc.errors import OperatorError
from ocrsvc.model_serving.policy import Policies, first_fault

LOGGER: Final = logging.getLogger("ocrsvc.models")

FILE: Final = "state.json"
DAMAGED_FILE: Final = "state.json.damaged"
LOCK: Final = "state.lock"
PROVING: Final = "proving"
MOST_VERDICTS: Final = 500
_MOST_BYTES: Final = 1 << 22
_LOCK_WAIT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.01

Generation = tuple[int, int, int]
"""When the file was replaced (ns), its inode and its size; other values when it was replaced again."""

_NONE: Final = (0, 0, 0)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Verdict(_Record):
    """Whether a version may take traffic.

    Attributes:
        accepted: Whether it may.
        reason: Why not, in a sentence; of an accepted one, what it was held against.
        figures: What was measured, by name, units in the names.
        at: When, Unix seconds.
        kind: What a refused version is refused for, as `proof/measurement.py` names it; "" of an accepted one.
        made_on: The machine and the versions of the programs that found it; see `verdict_basis.py`.
        written_ns: When one of the files was written last that a version is refused for; see `verdict_basis.py`.
        was_unreadable: The version could not even be listed, for its description or its key.
    """

    accepted: bool
    reason: str = ""
    figures: dict[str, float] = {}
    at: float = 0.0
    kind: str = ""
    made_on: str = ""
    written_ns: int = 0
    was_unreadable: bool = False


class ModelState(_Record):
    """All that is in the file.

    Attributes:
        verdicts: By the digest of a version's manifest.
        labels: By model, the number of each label's version; they come before those of the policy, and a 0 takes one
            of those away.
        loads: NAME or NAME/VERSION, which are wanted whatever the policy says.
        unloads: NAME or NAME/VERSION, which are not.
        policies: What a client has set in place of the repository's file.
        last_policies: What the repository's file said when it was right the last time; None where there was never one.
    """

    verdicts: dict[str, Verdict] = {}
    labels: dict[str, dict[str, int]] = {}
    loads: frozenset[str] = frozenset()
    unloads: frozenset[str] = frozenset()
    policies: Policies | None = None
    last_policies: Policies | None = None


EMPTY: Final = ModelState()


class StateStore:
    """The file, in a folder of its own; for any thread and process.

    Args:
        folder: Made when first written to. Others than its owner must not be able to write there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / FILE
        self._read: tuple[Generation, ModelState] = (_NONE, EMPTY)
        self._unreadable: Generation = _NONE

    def generation(self) -> Generation:
        """One look at the file (stat), which does not read it."""
        try:
            found = self._file.stat()
        except OSError:
            return _NONE
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> ModelState:
        """What it holds now; read only if it was replaced. A damaged file counts as empty, and is logged once.

        Of one that cannot be read now, what it held before; it is tried again the next time.
        """
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
        """Replace it by what `edit` makes of it; nobody else changes it meanwhile.

        Raises:
            OperatorError: The folder cannot be written to, or others hold the lock for five seconds.
        """
        try:
            with self._locked():
                before = self._load()[1]
                after = _bounded(edit(before))
                if after != before:
                    self._replace(after)
                return after
        except OSError as error:
            raise OperatorError(
                f"The state of the models in {self.folder} cannot be written: {error.strerror or error}.",
                "Let this user write there, or name another folder with OCRSVC_MODELS_STATE.",
            ) from error

    def record_verdict(self, digest: str, verdict: Verdict) -> None:
        """Keep what was found of the version with this manifest. Raises OperatorError, as `change`."""
        self.change(lambda state: state.model_copy(update={"verdicts": {**state.verdicts, digest: verdict}}))

    def forget_verdict(self, digest: str) -> None:
        """Have a version proved again. Raises OperatorError, as `change`."""

        def without(state: ModelState) -> ModelState:
            verdicts = {key: value for key, value in state.verdicts.items() if key != digest}
            return state.model_copy(update={"verdicts": verdicts})

        self.change(without)

    @contextlib.contextmanager
    def proving(self, digest: str) -> Iterator[None]:
        """Have it known, while the block lasts, that the version with this manifest is being proved."""
        with contextlib.ExitStack() as stack:
            # Where it cannot be written nobody is told; the verdict, which cannot be kept either, says so.
            with contextlib.suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                opened = os.open(self.folder / PROVING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, opened)
                # Who asks holds it for a moment.
                _wait_for_lock(opened)
                os.ftruncate(opened, 0)
                os.pwrite(opened, digest.encode(), 0)
            yield

    def proved_now(self) -> str:
        """The digest of the version that some worker is proving; "" while none does."""
        try:
            with (self.folder / PROVING).open("rb") as file:
                # Whoever proves holds it; the kernel releases it however that process ends.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return (self.folder / PROVING).read_text(encoding="utf-8", errors="replace")
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
            return _NONE, EMPTY
        try:
            return generation, ModelState.model_validate_json(content)
        except ValidationError as error:
            LOGGER.error("%s is damaged, and counts as empty: %s", self._file, first_fault(error))
            return generation, EMPTY

    def _replace(self, state: ModelState) -> None:
        """Write it beside, and move it to its place when it is on the disk. A damaged one is put aside first."""
        content = state.model_dump_json().encode()
        if len(content) > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it would have more than {_MOST_BYTES} bytes")
        self._put_damaged_aside()
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
        _sync_folder(self.folder)

    def _put_damaged_aside(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            try:
                ModelState.model_validate_json(self._file.read_bytes())
            except ValidationError:
                self._file.replace(self.folder / DAMAGED_FILE)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock, which the kernel releases however a process ends. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_safe(self.folder)
        opened = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait_for_lock(opened)
            yield
        finally:
            os.close(opened)


def state_folder(repository: Path, chosen: Path | None) -> Path:
    """Where the state of a repository is: the folder chosen, else one for its path in the user's cache folder.

    Raises:
        OperatorError: None is chosen, and the user has no home.
    """
    if chosen is not None:
        return chosen
    cache = default_folder()
    if cache is None:
        raise OperatorError("There is no home for the state of the models.", "Name a folder with OCRSVC_MODELS_STATE.")
    key = hashlib.sha256(os.fsencode(repository.resolve())).hexdigest()[:16]
    return cache / f"models-{key}"


def _bounded(state: ModelState) -> ModelState:
    """Without the oldest verdicts, if there are too many; refusals go first: what serves goes on serving."""
    if len(state.verdicts) <= MOST_VERDICTS:
        return state
    newest = sorted(state.verdicts.items(), key=lambda item: (item[1].accepted, item[1].at))[-MOST_VERDICTS:]
    return state.model_copy(update={"verdicts": dict(newest)})


def _check_safe(folder: Path) -> None:
    """Raises OSError where others could have put a verdict there."""
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
        raise OSError("it belongs to another user, or everybody may write there")


def _wait_for_lock(opened: int) -> None:
    end_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise TimeoutError("another process has held its lock for five seconds") from None
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
