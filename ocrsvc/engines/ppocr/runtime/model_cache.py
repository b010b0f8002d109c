"""The model cache: a folder of prepared and optimised models, which makes later starts faster.

A file holds the model and then its digest. The file's name contains a digest of everything that the model depends on.
Files that are damaged, unreadable, or that other users could have written are ignored. A file is written under a name
that ends in `.making`, then renamed; leftovers of killed processes are removed after a day. Models made from an
encrypted model are encrypted in the cache with the same key.
"""

import contextlib
import fcntl
import hashlib
import hmac
import mmap
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
_MAX_FOLDERS: Final = 24
_LOCK_POLL_S: Final = 0.05
_UNFINISHED_SUFFIX: Final = ".making"
_UNFINISHED_S: Final = 86400.0
_AUTHENTICATED_NAME: Final = "/cache/"  # prefix of an encrypted entry's name; no model file has such a name


class MappedEntry(mmap.mmap):
    """A mapped file of the cache: private memory, so that changes do not reach the file."""

    @property
    def length(self) -> int:
        """Length of the content, without the digest."""
        return len(self) - _DIGEST_BYTES

    def release_memory(self) -> None:
        """See system.allocator.Holder: the kernel reads the pages again when they are used. Undoes changes."""
        self.madvise(mmap.MADV_DONTNEED)


class ModelCache:
    """A cache folder, made when it is first written to; with folder None, nothing is cached. `key` encrypts entries."""

    def __init__(self, folder: Path | None, key: ModelKey | None = None) -> None:
        self._folder, self._key = folder, key

    @property
    def is_encrypted(self) -> bool:
        """Whether the entries are encrypted, so that nothing readable may be written into the folder."""
        return self._key is not None

    def find(self, name: str, key: str) -> bytes | None:
        """The content stored under a cache key; None if it is missing, damaged, or not written by this user."""
        if self._folder is None:
            return None
        entry = self._entry_name(name, key)
        content = _read_verified(self._folder / entry)
        if content is None or self._key is None:
            return content
        try:
            return decrypt(content, _AUTHENTICATED_NAME + entry, self._key)
        except CannotDecrypt:
            return None

    def map(self, name: str, key: str) -> MappedEntry | None:
        """As `find`, but map the file, which stays readable when it is removed; None for encrypted entries."""
        if self._folder is None or self.is_encrypted:
            return None
        try:
            with (self._folder / self._entry_name(name, key)).open("rb") as opened:
                if not _is_trusted(os.fstat(opened.fileno())):
                    return None
                entry = MappedEntry(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):
            return None
        with memoryview(entry) as data:
            return entry if data[entry.length :] == _digest(data[: entry.length]) else None

    @contextlib.contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        """Yield a temporary folder in the cache, for files that a library makes. Raises OSError."""
        if self._folder is None:
            raise FileNotFoundError
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(_UNFINISHED_SUFFIX, dir=self._folder, ignore_cleanup_errors=True) as made:
            yield Path(made)

    def store(self, name: str, key: str, content: bytes) -> None:
        """Store content under a cache key; does nothing if the folder is not writable."""
        if self._folder is None:
            return
        entry = self._entry_name(name, key)
        if self._key is not None:
            content = encrypt(content, _AUTHENTICATED_NAME + entry, new_set_id(), self._key)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_sealed(self._folder / entry, content)
            self._evict(name, _MAX_FILES)

    @contextlib.contextmanager
    def locked(self, name: str, wait_s: float) -> Iterator[bool]:
        """Lock a name against other processes and threads; yields False if it is not free within `wait_s`."""
        is_held = False
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                is_held = self._folder is not None and _wait_for_lock(stack, self._folder / f"{name}.lock", wait_s)
            yield is_held

    @contextlib.contextmanager
    def cached_folder(self, name: str, key: str) -> Iterator[Path | None]:
        """Yield a temporary folder with a library's cached files, and cache the files it added; None without a cache.

        Nothing is cached if the block raises. The library loads the files as code, so files that other users could
        write are ignored. With an encryption key it yields None, because the library would write unencrypted files.
        """
        with contextlib.ExitStack() as stack:
            try:
                entry = self._entry_folder(name, key)
                made = tempfile.TemporaryDirectory(
                    _UNFINISHED_SUFFIX, f"{entry.name}-", entry.parent, ignore_cleanup_errors=True
                )
                temporary = Path(stack.enter_context(made))
            except OSError:
                yield None
                return
            cached = _copy_verified(entry, temporary)
            yield temporary
            with contextlib.suppress(OSError):
                for file in temporary.iterdir():
                    if file.is_file() and (content := file.read_bytes()) != cached.get(file.name):
                        _write_sealed(entry / file.name, content)

    def _entry_name(self, name: str, key: str) -> str:
        """The file name of an entry; with encryption a keyed hash, which hides which models the cache holds."""
        if self._key is None:
            return f"{name}-{key}"
        hidden = hmac.digest(self._key.derive("names of cached models"), key.encode(), "sha256")
        return f"{name}-{hidden[:_NAME_BYTES].hex()}"

    def _entry_folder(self, name: str, key: str) -> Path:
        """The folder of an entry. Raises OSError if there is none that only this user can write to."""
        if self._folder is None or self._key is not None:
            raise FileNotFoundError
        folder = self._folder / f"{name}-{key}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_trusted(folder.lstat(), stat.S_IFDIR):
            raise PermissionError
        folder.touch()
        # Another process may delete the same entries.
        with contextlib.suppress(OSError):
            self._evict(name, _MAX_FOLDERS)
        return folder

    def _evict(self, name: str, max_entries: int) -> None:
        """Remove unfinished files and old entries; several are kept, for different machines that share the folder."""
        assert self._folder is not None, "only called with a folder"
        for unfinished in self._folder.rglob(f"*{_UNFINISHED_SUFFIX}"):
            if unfinished.stat().st_mtime < time.time() - _UNFINISHED_S:
                _remove(unfinished)
        entries = [entry for entry in self._folder.glob(f"{name}-*") if entry.suffix != _UNFINISHED_SUFFIX]
        for old in sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)[max_entries:]:
            _remove(old)


def default_folder() -> Path | None:
    """The user's cache folder; None without a home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ocrsvc"
    except RuntimeError:
        return None


def cache_key(*parts: bytes) -> str:
    """A digest of everything that an optimised model depends on: the given parts, and the CPU's features."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*parts, cpu_features()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def cpu_features() -> bytes:
    """Operating system, architecture and CPU flags, on which the layout of optimised weights may depend."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:.*$", text, re.MULTILINE)
    return f"{platform.system()} {platform.machine()} {flags[0] if flags else text[:200]}".encode()


def _is_trusted(status: os.stat_result, kind: int = stat.S_IFREG) -> bool:
    """Whether a file is regular (or of another `kind`) and no other user could have written it."""
    if stat.S_IFMT(status.st_mode) != kind:
        return False
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _wait_for_lock(stack: contextlib.ExitStack, file: Path, wait_s: float) -> bool:
    """Lock a file until the stack closes or the process ends; False if it stays locked for `wait_s`."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, opened)
    end_s = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > end_s:
            return False
        time.sleep(_LOCK_POLL_S)


def _copy_verified(entry: Path, temporary: Path) -> dict[str, bytes]:
    """Copy the intact files, and delete the damaged ones; returns the copied contents by name."""
    copied = {}
    with contextlib.suppress(OSError):
        for file in list(entry.iterdir()):
            content = _read_verified(file)
            if content is None:
                file.unlink()
            else:
                (temporary / file.name).write_bytes(content)
                copied[file.name] = content
    return copied


def _read_verified(file: Path) -> bytes | None:
    """The content of a file that `_write_sealed` wrote; None if it is damaged or another user may have written it."""
    try:
        with file.open("rb") as opened:
            if not _is_trusted(os.fstat(opened.fileno())):
                return None
            data = opened.read()
    except OSError:
        return None
    content = data[:-_DIGEST_BYTES]
    return content if data[-_DIGEST_BYTES:] == _digest(content) else None


def _write_sealed(file: Path, content: bytes) -> None:
    """Write content, followed by its digest, to a file atomically. Raises OSError."""
    opened, temporary = tempfile.mkstemp(_UNFINISHED_SUFFIX, f"{file.name}-", file.parent)
    try:
        with os.fdopen(opened, "wb") as writing:
            writing.write(content)
            writing.write(_digest(content))
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
