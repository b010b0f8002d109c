"""Where is a model kept once it is mended and optimised, so that the next start need not do it again?

A file holds the model and, at its end, a digest of it; its name holds a digest of everything that the model depends on.
What is missing, damaged, written by somebody else or out of reach is as good as absent: the model is made again.
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

_DIGEST_BYTES: Final = 32
_KEPT: Final = 4
_FOLDERS_KEPT: Final = 24


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
        try:
            with (self._folder / f"{name}-{key}").open("rb") as file:
                if not _is_ours(os.fstat(file.fileno())):
                    return None
                data = file.read()
        except OSError:
            return None
        model, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        return model if digest == _digest(model) else None

    def forget(self, name: str, key: str) -> None:
        """Keep the model under that key no longer."""
        if self._folder is not None:
            (self._folder / f"{name}-{key}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def place(self, name: str, key: str, needed_bytes: int) -> Iterator[Path | None]:
        """A file to write the model to, which is kept when the block ends well; None where nothing can be kept."""
        if self._folder is None:
            yield None
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if shutil.disk_usage(self._folder).free < needed_bytes:
                raise OSError(errno.ENOSPC, "too little room")
            made = tempfile.TemporaryDirectory(prefix=f"{name}-", suffix=".making", dir=self._folder)
        except OSError:
            yield None
            return
        with made:
            file = Path(made.name, "model")
            yield file
            with contextlib.suppress(OSError):
                _seal(file)
                file.replace(self._folder / f"{name}-{key}")
                self._forget_the_oldest(name)

    def folder(self, name: str, key: str) -> Path | None:
        """A folder of that key for a library that keeps files of its own; None where nothing can be kept.

        What lies in it is loaded as code, so a folder that others may write to is no folder.
        """
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
            folders = [made for made in self._folder.glob(f"{name}-*") if made.is_dir()]
            for old in sorted(folders, key=lambda made: made.stat().st_mtime, reverse=True)[_FOLDERS_KEPT:]:
                shutil.rmtree(old, ignore_errors=True)
        return folder

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


def _seal(file: Path) -> None:
    with file.open("r+b") as writing:
        digest = _digest(writing.read())
        writing.write(digest)
    file.chmod(0o600)


def _digest(model: bytes) -> bytes:
    return hashlib.blake2b(model, digest_size=_DIGEST_BYTES).digest()
