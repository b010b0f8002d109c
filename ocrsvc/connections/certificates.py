"""The certificates that new connections get: read at the start, and again when their files change.

A connection keeps what it began with. What cannot be used leaves the certificates as they are.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from ocrsvc.connections.certificate import Certificate, check_time, read_certificate
from ocrsvc.connections.memory_copy import ROLES, MemoryCopy
from ocrsvc.connections.tls_files import GRPC, HTTP, TlsFiles, make_context

MOST_SESSIONS: Final = 1000
"""Sessions that OpenSSL may keep for clients of TLS 1.2. Python cannot switch its cache off, which has no use here and
takes 20,000 of them."""

_Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Contexts:
    """What one reading of the files made.

    Attributes:
        http, grpc: For new connections of each.
        certificate: The service's own.
    """

    http: ssl.SSLContext
    grpc: ssl.SSLContext
    certificate: Certificate


class Certificates:
    """The certificates of the service. The arbiter reads the files, and copies them; its workers follow it.

    Any thread may read `current`; one thread changes it.

    Args:
        files: Where they are.
        clock: Unix time in seconds.

    Attributes:
        current: What new connections get.
        generation: How often others were read and taken.

    Raises:
        SettingsError: They cannot be used.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        self.generation = 0
        self._files = files
        self._clock = clock
        # A generation's, and the one for the next: a reading that fails leaves the first alone.
        self._copies = (MemoryCopy(), MemoryCopy())
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, 0)

    def have_changed(self) -> bool:
        """Arbiter: whether the files differ from when they were last read, and no more from the last look at them.

        Certificate and key are written one after the other: in between they do not belong together.
        """
        before, self._seen_signature = self._seen_signature, _signature_of(self._files)
        return before == self._seen_signature != self._read_signature

    def read_again(self, files: TlsFiles | None = None) -> None:
        """Arbiter: take what the files hold now, or others. Raises SettingsError, and leaves everything as it was."""
        files = files or self._files
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, self.generation + 1)
        self._files, self.generation = files, self.generation + 1

    def follow(self, generation: int) -> None:
        """Worker: take what the arbiter has read. Raises SettingsError, and leaves everything as it was."""
        self.generation = generation
        self.current = _open(replace(self._files, copy=self._copies[generation % 2]))

    def drop_sessions(self) -> None:
        """Worker: forget the sessions that OpenSSL keeps, once they are many. Raises SettingsError."""
        contexts = (self.current.http, self.current.grpc)
        if any(context.session_stats()["number"] > MOST_SESSIONS for context in contexts):
            self.follow(self.generation)

    def left_s(self) -> float:
        """Seconds until the service's certificate expires; negative when it has."""
        return self.current.certificate.not_after_s - self._clock()

    def _read(self, files: TlsFiles, generation: int) -> Contexts:
        copy = self._copies[generation % 2]
        for role in filter(files.is_named, ROLES):
            copy.write(role, files.read(role))
        found = _open(replace(files, copy=copy))
        check_time(files, found.certificate, self._clock())
        return found


def _open(files: TlsFiles) -> Contexts:
    """Both contexts. Raises SettingsError."""
    return Contexts(make_context(files, HTTP), make_context(files, GRPC), read_certificate(files))


def _signature_of(files: TlsFiles) -> _Signature:
    """What changes when a file is written or replaced; nothing for one that is not there."""
    found = []
    for path in (files.certificate, files.key, files.client_ca):
        if path is not None:
            with suppress(OSError):
                state = os.stat(path)  # noqa: PTH116  a few times a second
                found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)
