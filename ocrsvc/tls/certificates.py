"""The certificates that new connections get: read at the start, and again when their files change.

A connection keeps what it began with. What cannot be used leaves the certificates as they are.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ocrsvc.tls.certificate import Certificate, check_time, read_certificate
from ocrsvc.tls.context import GRPC, HTTP, TlsFiles, make_context

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
    """The certificates of one process. Any thread may read `current`; one thread reads the files.

    Args:
        files: Where they are.
        clock: Unix time in seconds.

    Attributes:
        files: The same.
        current: What new connections get.
        generation: How often the service has taken others; counted by its arbiter.

    Raises:
        SettingsError: They cannot be used.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        self.files = files
        self.generation = 0
        self._clock = clock
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._open()

    def have_changed(self) -> bool:
        """Whether the files differ from when they were last read, and no more from the last time that this was asked.

        Certificate and key are written one after the other: in between they do not belong together.
        """
        before, self._seen_signature = self._seen_signature, _signature_of(self.files)
        return before == self._seen_signature != self._read_signature

    def read_again(self) -> None:
        """New connections get what the files hold now. Raises SettingsError, and leaves them what they had."""
        self._read_signature = self._seen_signature = _signature_of(self.files)
        self.current = self._open()

    def drop_sessions(self) -> None:
        """Forget the sessions that OpenSSL keeps, once they are many. Raises SettingsError, as `read_again`."""
        contexts = (self.current.http, self.current.grpc)
        if any(context.session_stats()["number"] > MOST_SESSIONS for context in contexts):
            self.read_again()

    def left_s(self) -> float:
        """Seconds until the service's certificate expires; negative when it has."""
        return self.current.certificate.not_after_s - self._clock()

    def _open(self) -> Contexts:
        certificate = read_certificate(self.files)
        check_time(self.files, certificate, self._clock())
        return Contexts(make_context(self.files, HTTP), make_context(self.files, GRPC), certificate)


def _signature_of(files: TlsFiles) -> _Signature:
    """What changes when a file is written or replaced; nothing for one that is not there."""
    found = []
    for path in (files.certificate, files.key, files.client_ca):
        if path is not None:
            with suppress(OSError):
                state = os.stat(path)  # noqa: PTH116  a few times a second
                found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)
