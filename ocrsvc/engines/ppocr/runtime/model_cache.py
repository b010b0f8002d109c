"""The model cache: a folder of prepared and optimised models, so that the next start need not make them again.

A file holds the model and, at its end, a digest of it; its name holds a digest of everything that the model depends on.
What is missing, damaged, written by somebody else or out of reach counts as absent: the model is made again.

Everything is made in a folder of its own, whose name ends in `.making`, and moved to its place when it is whole. The
process that makes it holds a lock on that folder, which the kernel releases however the process ends; a folder whose
lock is free is removed by the next process that looks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows: what a killed maker leaves stays
    fcntl = None  # type: ignore[assignment]

_DIGEST_BYTES: Final = 32
_KEPT: Final = 4
_FOLDERS_KEPT: Final = 24
_MAKING: Final = ".making"
_TRIES: Final = 5


class Store:
    """A folder of optimised models.

    Args:
        folder: Made when first written to; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, name: str, key: str) -> bytes | None:
        """The model kept under that key, if it is whole and this user's own."""
        if self._folder is None:
            return None
        _remove_unfinished(self._folder)
        return _unsealed(self._folder / f"{name}-{key}")

    def forget(self, name: str, key: str) -> None:
        """Keep the model under that key no longer."""
        if self._folder is not None:
            (self._folder / f"{name}-{key}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def place(self, name: str, key: str, needed_bytes: int) -> Iterator[Path | None]:
        """A file to write the model to, which is kept when the block ends well; None where nothing can be kept."""
        with self._making(name, needed_bytes) as made:
            if self._folder is None or made is None:
                yield None
                return
            file = made / "model"
            yield file
            with contextlib.suppress(OSError):
                _seal(file)
                file.replace(self._folder / f"{name}-{key}")
                self._forget_the_oldest(name)

    @contextlib.contextmanager
    def folder(self, name: str, key: str) -> Iterator[Path | None]:
        """A folder for a library that keeps files of its own, while the block lasts; None where nothing can be kept.

        What was kept under that key lies in it, each file whole; what it holds when the block ends well is kept. It is
        loaded as code, so what others may write to is as good as absent.
        """
        kept = self._kept_folder(name, key)
        with self._making(name, 0) if kept is not None else contextlib.nullcontext() as made:
            if kept is None or made is None:
                yield None
                return
            found = _fetch(kept, made)
            yield made
            with contextlib.suppress(OSError):
                for file in [file for file in made.iterdir() if file.is_file()]:
                    if _digest(file.read_bytes()) != found.get(file.name):
                        _seal(file)
                        file.replace(kept / file.name)

    def _kept_folder(self, name: str, key: str) -> Path | None:
        if self._folder is None:
            return None
        folder = self._folder / f"{name}-{key}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_ours(folder.lstat(), stat.S_IFDIR):
                return None
            folder.touch()
        except OSError:
            return None
        # Another process may tidy up at the same time.
        with contextlib.suppress(OSError):
            folders = [kept for kept in self._folder.glob(f"{name}-*") if kept.is_dir() and kept.suffix != _MAKING]
            for old in sorted(folders, key=lambda kept: kept.stat().st_mtime, reverse=True)[_FOLDERS_KEPT:]:
                shutil.rmtree(old, ignore_errors=True)
        return folder

    @contextlib.contextmanager
    def _making(self, name: str, needed_bytes: int) -> Iterator[Path | None]:
        """A folder to make something in, which is gone after the block; None where there is no room for it."""
        try:
            if self._folder is None:
                raise OSError(errno.ENOENT, "nothing is kept")
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_unfinished(self._folder)
            if shutil.disk_usage(self._folder).free < needed_bytes:
                raise OSError(errno.ENOSPC, "too little room")
            made, lock = _make_locked(self._folder, name)
        except OSError:
            yield None
            return
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
            os.close(lock)

    def _forget_the_oldest(self, name: str) -> None:
        """Keep a few: versions change, and machines that share a home differ."""
        assert self._folder is not None
        files = [file for file in self._folder.glob(f"{name}-*") if file.is_file()]
        for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[_KEPT:]:
            file.unlink(missing_ok=True)


def default_folder() -> Path | None:
    """The user's cache folder; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ocrsvc"
    except RuntimeError:
        return None


def key_of(*parts: bytes) -> str:
    """A short name for everything that an optimised model depends on, the processor included."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*parts, processor()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def processor() -> bytes:
    """What the layout of optimised weights may depend on: the architecture and what the processor can do."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:.*$", text, re.MULTILINE)
    return f"{platform.system()} {platform.machine()} {flags[0] if flags else text[:200]}".encode()


def _is_ours(status: os.stat_result, kind: int = stat.S_IFREG) -> bool:
    """A plain file, or a folder, that nobody else could have written; where there are no owners (Windows), any."""
    if stat.S_IFMT(status.st_mode) != kind:
        return False
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_locked(folder: Path, name: str) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock. Raises OSError."""
    for _ in range(_TRIES):
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=_MAKING, dir=folder))
        if fcntl is None:
            return made, os.open(os.devnull, os.O_RDONLY)
        lock = _lock(made)
        # Between the two another process may have found it without a maker.
        if lock is not None and made.exists():
            return made, lock
        if lock is not None:
            os.close(lock)
    raise OSError(errno.EBUSY, "another process removes what is made here")


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None when the folder is gone, or somebody else holds it."""
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        return None
    except BaseException:
        os.close(found)
        raise
    return found


def _remove_unfinished(folder: Path) -> None:
    """Remove what was being made by processes that were killed."""
    if fcntl is None:
        return
    for left in folder.glob(f"*{_MAKING}"):
        with contextlib.suppress(OSError):
            lock = _lock(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


def _fetch(kept: Path, made: Path) -> dict[str, bytes]:
    """Copy the files that are whole, and forget the others; returns the digests of what was copied."""
    found = {}
    with contextlib.suppress(OSError):
        for file in list(kept.iterdir()):
            data = _unsealed(file)
            if data is None:
                file.unlink()
                continue
            (made / file.name).write_bytes(data)
            found[file.name] = _digest(data)
    return found


def _unsealed(file: Path) -> bytes | None:
    """What was sealed in a file; None if it is not whole, or could be somebody else's."""
    try:
        with file.open("rb") as opened:
            if not _is_ours(os.fstat(opened.fileno())):
                return None
            data = opened.read()
    except OSError:
        return None
    content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return content if digest == _digest(content) else None


def _seal(file: Path) -> None:
    with file.open("r+b") as writing:
        digest = _digest(writing.read())
        writing.write(digest)
    file.chmod(0o600)


def _digest(model: bytes) -> bytes:
    return hashlib.blake2b(model, digest_size=_DIGEST_BYTES).digest()
