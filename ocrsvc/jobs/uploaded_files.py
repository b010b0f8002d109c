"""Files that callers upload to be read later, on disk beside the jobs: bounded, by caller, and kept for a time.

Each is a folder in the folder of files, which appears and goes by renaming:

    file          what was sent
    about.json    its name, whose it is, and the key that it came with
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.errors import BodyTooLarge, QueueFull
from ocrsvc.jobs.eviction import Bounds, Need, Stored, displaced
from ocrsvc.jobs.files import locked, sync

MOST_FILES: Final = 200

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BESIDE: Final = re.compile(r"\.(?P<pid>[0-9]{1,9})-[0-9a-f]{32}")
_LOCK_FILE: Final = ".lock"
_SIGNING_FILE: Final = ".signing"
_SECRET_BYTES: Final = 32
_RETRY_S: Final = 30


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One file that was uploaded.

    Attributes:
        folder: Where it lies.
        name: As its caller calls it.
        caller: Whose it is, as requests are counted.
        key: The identity of the API key that it came with; None where there was none.
        size_bytes: Of the file.
        came_at_s: When it came, in seconds of the clock on the wall.
    """

    folder: Path
    name: str
    caller: str
    key: str | None
    size_bytes: int
    came_at_s: float

    @property
    def id(self) -> str:
        """Random; where no keys are wanted, all that a caller needs to know."""
        return self.folder.name

    def data(self) -> bytes:
        """What was sent. Raises FileNotFoundError once it was removed."""
        return (self.folder / "file").read_bytes()


class UploadedFiles:
    """The uploaded files of a service, seen by one of its processes; for any thread.

    Args:
        folder: Made when the first file comes; its parent must be there.
        most_bytes: Of all files together.
        keep_s: How long a file is kept.
        clock: Seconds of the clock on the wall, the same in all processes.
    """

    def __init__(self, folder: Path, most_bytes: int, keep_s: float, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._most_bytes, self._keep_s, self._clock = folder, most_bytes, keep_s, clock
        self._secret = b""

    def add(self, data: bytes, name: str, caller: str, key: str | None) -> UploadedFile:
        """Take in a file of a caller, for which others may have to go (see `eviction.displaced`).

        Raises:
            BodyTooLarge: It is larger than all files together may be.
            QueueFull: There is no space for it, or others are stored that take too long.
            OSError: It cannot be stored; nothing is left of it.
        """
        if len(data) > self._most_bytes:
            raise BodyTooLarge(
                f"The file has {len(data)} bytes; uploaded files may have {self._most_bytes} together.",
                "Send it in the request that reads it, or ask the operator to raise OCRSVC_TASKS_BYTES.",
            )
        self._folder.mkdir(mode=0o700, exist_ok=True)
        beside = self._folder / f".{os.getpid()}-{uuid.uuid4().hex}"
        try:
            beside.mkdir(0o700)
            (beside / "file").write_bytes(data)
            (beside / "about.json").write_bytes(orjson.dumps([name, caller, key, self._clock()]))
            with self._locked():
                self._remove_for(Need(caller, len(data)))
                return _file_in(beside.rename(self._folder / str(uuid.uuid4())))
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise

    def find(self, name: str) -> UploadedFile | None:
        """The file with this id; None for any other text, and for one that is too old."""
        if not _ID.fullmatch(name):
            return None
        with suppress(FileNotFoundError):
            file = _file_in(self._folder / name)
            return file if self._is_kept(file) else None
        return None

    def all(self) -> list[UploadedFile]:
        """All that are kept, the newest first."""
        found = []
        for place in self._places():
            with suppress(FileNotFoundError):
                found.append(_file_in(place))
        return sorted(filter(self._is_kept, found), key=lambda file: (-file.came_at_s, file.id))

    def remove(self, file: UploadedFile) -> None:
        """Remove a file; nothing happens where it is gone already."""
        gone = self._folder / f".{os.getpid()}-{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            file.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what is too old, and what processes left that ended while they stored or removed a file."""
        for entry in self._entries():
            found = _BESIDE.fullmatch(entry.name)
            if found and not Path("/proc", found["pid"]).exists():
                shutil.rmtree(entry, ignore_errors=True)
        for place in self._places():
            with suppress(FileNotFoundError):
                if not self._is_kept(file := _file_in(place)):
                    self.remove(file)

    def begin_again(self) -> None:
        """For the service that has just opened the folder: remove what an earlier one had not stored to the end."""
        for entry in self._entries():
            if _BESIDE.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.startswith(f"{_SIGNING_FILE}-"):
                Path(entry).unlink(missing_ok=True)
            elif entry.name == _SIGNING_FILE and entry.stat().st_size != _SECRET_BYTES:
                # A loss of power left it empty, and everybody could sign.
                Path(entry).unlink(missing_ok=True)

    def expires_at_s(self, file: UploadedFile) -> float:
        """When it is removed, in seconds of the clock on the wall."""
        return file.came_at_s + self._keep_s

    def now_s(self) -> float:
        """Seconds of the clock on the wall."""
        return self._clock()

    def secret(self) -> bytes:
        """Random bytes that all processes of the service share, as long as the folder is there. Raises OSError."""
        if not self._secret:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            place = self._folder / _SIGNING_FILE
            beside = self._folder / f"{_SIGNING_FILE}-{uuid.uuid4().hex}"
            if not place.exists():
                beside.touch(0o600)
                beside.write_bytes(secrets.token_bytes(_SECRET_BYTES))
                sync(beside)
                # Of several processes one is the first; the others take what it has written.
                with suppress(FileExistsError):
                    os.link(beside, place)
                beside.unlink()
            self._secret = place.read_bytes()
        return self._secret

    def _is_kept(self, file: UploadedFile) -> bool:
        return self._clock() < self.expires_at_s(file)

    def _remove_for(self, need: Need) -> None:
        """Remove what has to go. Raises QueueFull when that is not enough."""
        self.sweep()
        files = {file.id: file for file in self.all()}
        stored = [Stored(file.id, file.caller, file.size_bytes, file.came_at_s, True) for file in files.values()]
        gone = displaced(stored, need, Bounds(MOST_FILES, self._most_bytes))
        if gone is None:
            raise QueueFull(
                f"{MOST_FILES} uploaded files, or {self._most_bytes} bytes of them, are kept already, and none of them "
                "has to make room for this caller.",
                "Delete files that you do not need any more.",
                _RETRY_S,
            )
        for entry in gone:
            self.remove(files[entry.id])

    def _places(self) -> list[Path]:
        return [Path(entry) for entry in self._entries() if _ID.fullmatch(entry.name)]

    def _entries(self) -> list[os.DirEntry[str]]:
        with suppress(FileNotFoundError):
            return list(os.scandir(self._folder))
        return []

    def _locked(self) -> AbstractContextManager[None]:
        """No other process takes one in meanwhile. Raises as `locked`."""
        return locked(self._folder / _LOCK_FILE, "files")


def _file_in(folder: Path) -> UploadedFile:
    """Raises FileNotFoundError where it is gone, or a loss of power has left nothing of it."""
    try:
        name, caller, key, came_at_s = orjson.loads((folder / "about.json").read_bytes())
    except ValueError as error:
        raise FileNotFoundError(errno.ENOENT, "damaged", str(folder)) from error
    return UploadedFile(folder, name, caller, key, (folder / "file").stat().st_size, came_at_s)
