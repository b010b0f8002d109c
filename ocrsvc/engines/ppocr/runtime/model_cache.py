"""The model cache: a folder of prepared and optimised models, so that the next start need not make them again.

A file holds the model and, at its end, a digest of it; its name holds a digest of everything that the model depends on.
What is missing, damaged, written by somebody else or out of reach counts as absent: the model is made again.

Everything is made in a folder of its own, whose name ends in `.making`, and moved to its place when it is whole. Who
makes something shares a lock on the cache's folder, which the kernel releases however a process ends; what is left
unfinished is removed by the next process that looks while nobody holds that lock.

What is made of an encrypted model is made in memory, and cached encrypted with the same key.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ocrsvc.engines.model.encryption import CannotDecrypt, ModelKey, decrypt, encrypt, new_set_id

_DIGEST_BYTES: Final = 32
_NAME_BYTES: Final = 16
_MAX_FILES: Final = 4
_LOCK_POLL_S: Final = 0.05
_MAX_FOLDERS: Final = 24
_TEMPORARY_SUFFIX: Final = ".making"


class ModelCache:
    """A folder of optimised models, made when first written to; None keeps nothing.

    What is cached is encrypted with `key`, and found with the same key only; None caches it as it is.
    """

    def __init__(self, folder: Path | None, key: ModelKey | None = None) -> None:
        self._folder = folder
        self._key = key

    def find(self, name: str, key: str) -> bytes | None:
        """The model cached under that key, if it is whole and this user's own."""
        if self._folder is None:
            return None
        _remove_unfinished(self._folder)
        entry = self._entry_name(name, key)
        found = _read_verified(self._folder / entry)
        return found if found is None or self._key is None else _decrypted(found, entry, self._key)

    @contextlib.contextmanager
    def locked(self, name: str, wait_s: float) -> Iterator[bool]:
        """Holds a lock of that name against other processes and threads; False where it is not to be had in time.

        The kernel releases it however a process ends.
        """
        with contextlib.ExitStack() as stack:
            try:
                is_held = self._folder is not None and _wait_for_lock(stack, self._folder / f"{name}.lock", wait_s)
            except OSError:
                is_held = False
            yield is_held

    @contextlib.contextmanager
    def new_file(self, name: str, key: str, needed_bytes: int) -> Iterator[Path | None]:
        """A file to write the model to, which is cached when the block ends well; None where nothing can be cached.

        With a key it is a file in memory, with a path of this process.
        """
        with self._temporary_folder(name, needed_bytes) as temporary:
            if self._folder is None or temporary is None:
                yield None
                return
            file, entry = temporary / "model", self._entry_name(name, key)
            with _written_to(file, entry, self._key) as written:
                yield written
            with contextlib.suppress(OSError):
                _append_digest(file)
                file.replace(self._folder / entry)
                self._evict_oldest(name, _MAX_FILES)

    @contextlib.contextmanager
    def cached_folder(self, name: str, key: str) -> Iterator[Path | None]:
        """A folder for a library that keeps files of its own, while the block lasts; None where none can be cached.

        What was cached under that key lies in it, each file whole; what it holds when the block ends well is cached.
        It is loaded as code, so what others may write to counts as absent. With a key there is none: the library would
        write plain files.
        """
        entry = self._entry_folder(name, key) if self._key is None else None
        with self._temporary_folder(name, 0) if entry is not None else contextlib.nullcontext() as temporary:
            if entry is None or temporary is None:
                yield None
                return
            found = _copy_verified(entry, temporary)
            yield temporary
            with contextlib.suppress(OSError):
                for file in [file for file in temporary.iterdir() if file.is_file()]:
                    if _digest(file.read_bytes()) != found.get(file.name):
                        _append_digest(file)
                        file.replace(entry / file.name)

    def _entry_name(self, name: str, key: str) -> str:
        """The name of a file. With a key nobody can tell from it which model it is, who has that model plain."""
        if self._key is None:
            return f"{name}-{key}"
        hidden = hmac.digest(self._key.derive("names of cached models"), key.encode(), "sha256")
        return f"{name}-{hidden[:_NAME_BYTES].hex()}"

    def _entry_folder(self, name: str, key: str) -> Path | None:
        if self._folder is None:
            return None
        folder = self._folder / f"{name}-{key}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_trusted(folder.lstat(), stat.S_IFDIR):
                return None
            folder.touch()
        except OSError:
            return None
        # Another process may tidy up at the same time.
        with contextlib.suppress(OSError):
            self._evict_oldest(name, _MAX_FOLDERS)
        return folder

    @contextlib.contextmanager
    def _temporary_folder(self, name: str, needed_bytes: int) -> Iterator[Path | None]:
        """A folder to make something in, which is gone after the block; None where there is no room for it."""
        with contextlib.ExitStack() as stack:
            try:
                if self._folder is None:
                    raise OSError(errno.ENOENT, "nothing is kept")
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _remove_unfinished(self._folder)
                if shutil.disk_usage(self._folder).free < needed_bytes:
                    raise OSError(errno.ENOSPC, "too little room")
                stack.enter_context(_lock(self._folder, shared=True))
                temporary = Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=_TEMPORARY_SUFFIX, dir=self._folder))
            except OSError:
                yield None
                return
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            yield temporary

    def _evict_oldest(self, name: str, most: int) -> None:
        """Keep a few: versions change, and machines that share a home differ."""
        assert self._folder is not None
        entries = [entry for entry in self._folder.glob(f"{name}-*") if entry.suffix != _TEMPORARY_SUFFIX]
        for old in sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)[most:]:
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)


def default_folder() -> Path | None:
    """The user's cache folder; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ocrsvc"
    except RuntimeError:
        return None


def cache_key(*parts: bytes) -> str:
    """A short name for everything that an optimised model depends on, the processor included."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*parts, cpu_features()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def cpu_features() -> bytes:
    """What the layout of optimised weights may depend on: the architecture and what the processor can do."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:.*$", text, re.MULTILINE)
    return f"{platform.system()} {platform.machine()} {flags[0] if flags else text[:200]}".encode()


def _is_trusted(status: os.stat_result, kind: int = stat.S_IFREG) -> bool:
    """A plain file, or a folder, that nobody else could have written."""
    if stat.S_IFMT(status.st_mode) != kind:
        return False
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _wait_for_lock(stack: contextlib.ExitStack, file: Path, wait_s: float) -> bool:
    """Lock a file until the stack is closed; False where others hold it for that long."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, opened)
    end_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                return False
            time.sleep(_LOCK_POLL_S)
        else:
            return True


@contextlib.contextmanager
def _lock(folder: Path, *, shared: bool) -> Iterator[None]:
    """Holds the folder's lock, with others who share it or alone. Raises OSError, if others hold it for one alone."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed were making, unless something is being made."""
    with contextlib.suppress(OSError), _lock(folder, shared=False):
        for abandoned in folder.glob(f"*{_TEMPORARY_SUFFIX}"):
            shutil.rmtree(abandoned, ignore_errors=True)


def _copy_verified(entry: Path, temporary: Path) -> dict[str, bytes]:
    """Copy the files that are whole, and forget the others; returns the digests of what was copied."""
    found = {}
    with contextlib.suppress(OSError):
        for file in list(entry.iterdir()):
            data = _read_verified(file)
            if data is None:
                file.unlink()
                continue
            (temporary / file.name).write_bytes(data)
            found[file.name] = _digest(data)
    return found


def _read_verified(file: Path) -> bytes | None:
    """What was sealed in a file; None if it is not whole, or could be somebody else's."""
    try:
        with file.open("rb") as opened:
            if not _is_trusted(os.fstat(opened.fileno())):
                return None
            data = opened.read()
    except OSError:
        return None
    content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return content if digest == _digest(content) else None


@contextlib.contextmanager
def _written_to(file: Path, entry: str, key: ModelKey | None) -> Iterator[Path]:
    """The file itself; with a key one in memory, whose content is encrypted into the other at the end."""
    if key is None:
        yield file
        return
    opened = os.memfd_create(entry, os.MFD_CLOEXEC)
    try:
        in_memory = Path(f"/proc/self/fd/{opened}")
        yield in_memory
        with contextlib.suppress(OSError):
            file.write_bytes(encrypt(in_memory.read_bytes(), _bound_name(entry), new_set_id(), key))
    finally:
        os.close(opened)


def _bound_name(entry: str) -> str:
    """What an entry is encrypted under: no file of a model has such a name."""
    return f"/cache/{entry}"


def _decrypted(found: bytes, entry: str, key: ModelKey) -> bytes | None:
    try:
        return decrypt(found, _bound_name(entry), key)
    except CannotDecrypt:
        return None


def _append_digest(file: Path) -> None:
    with file.open("r+b") as writing:
        digest = _digest(writing.read())
        writing.write(digest)
    file.chmod(0o600)


def _digest(model: bytes) -> bytes:
    return hashlib.blake2b(model, digest_size=_DIGEST_BYTES).digest()
