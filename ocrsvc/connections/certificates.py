"""The certificates that new connections get: read and proved at the start, and again when their files change.

A connection keeps the certificate that it began with. Files that cannot be used leave the certificates as they are.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from ocrsvc.connections.tls_contexts import (
    GRPC,
    HTTP,
    ROLES,
    MemoryCopy,
    TlsFiles,
    context_trusting,
    make_context,
    make_plain_context,
)
from ocrsvc.errors import SettingsError

MOST_SESSIONS: Final = 1000
"""Sessions that OpenSSL may keep for clients of TLS 1.2. Python cannot switch its cache off, which has no use here and
takes 20,000 of them."""

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the time is checked here, with its own sentence.
_NO_CHECK_TIME: Final = 0x200000
# As Python's ssl calls the kinds, and as the setting tls_names does.
_ALTERNATIVE_KINDS: Final = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
# TLS 1.2 takes three.
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Certificate:
    """The names in the service's certificate, such as "DNS=ocr.example.com", and its time, in Unix time."""

    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float


@dataclass(frozen=True, slots=True)
class Contexts:
    """For new connections of HTTP and of gRPC, from one reading of the files."""

    http: ssl.SSLContext
    grpc: ssl.SSLContext
    certificate: Certificate


class Certificates:
    """The certificates of the service. The arbiter reads the files, and copies them; its workers follow it.

    Any thread may read `current`, which new connections get; one thread changes it. `generation` counts the changes;
    the clock gives Unix time. Raises SettingsError for files that cannot be used.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        self.generation = 0
        self._files, self._clock = files, clock
        # That of a generation, and that of the next: a reading that fails leaves the first alone.
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
        """Arbiter: take the files as they are now, or others. Raises SettingsError, and leaves everything as it was."""
        files = files or self._files
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, self.generation + 1)
        self._files, self.generation = files, self.generation + 1

    def follow(self, generation: int) -> None:
        """Worker: take the arbiter's certificates. Raises SettingsError, and leaves everything as it was."""
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
        for role in ROLES:
            if getattr(files, role) is not None:
                copy.write(role, files.read(role))
        found = _open(replace(files, copy=copy))
        _check_time(files, found.certificate, self._clock())
        return found


def in_utc(time_s: float) -> str:
    """A time for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a verified certificate, as `ssl` gives it: alternative names first, such as "DNS=a.example"."""
    return tuple(_names(certificate or {}))


def keys_by_name(entries: Iterable[str]) -> dict[str, str]:
    """The setting tls_names: the name of a key by a certificate's name."""
    return {name: key for name, _, key in (entry.rpartition(":") for entry in entries)}


def key_of(names: Iterable[str], keys: Mapping[str, str]) -> str | None:
    """The name of the key that a certificate of these names stands for; None for none."""
    return next((keys[name] for name in names if name in keys), None)


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in _ALTERNATIVE_KINDS:
            yield f"{_ALTERNATIVE_KINDS[kind]}={value}"
    for pairs in certificate.get("subject", ()):
        yield from (f"CN={value}" for kind, value in pairs if kind == "commonName")


def connect_in_memory(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """The server's certificate, as a client sees it. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        for side in (one, other):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return one.getpeercert() or {}


def _open(files: TlsFiles) -> Contexts:
    """Both contexts, and the certificate, which works with its key. Raises SettingsError."""
    return Contexts(make_context(files, HTTP), make_context(files, GRPC), _prove(files))


def _prove(files: TlsFiles) -> Certificate:
    """The first certificate in the file, as a client in this process sees it. Raises SettingsError.

    Python reads a certificate only of a peer; the handshake proves, too, that the pair can serve with our ciphers.
    """
    server = make_plain_context(files)
    try:
        client = context_trusting(files.read("certificate"))
        client.verify_flags |= _NO_CHECK_TIME
        found = connect_in_memory(server, client)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or "the handshake fails"
        raise SettingsError(
            f"{files.describe('certificate')}: no client can use it: {reason}.", "Use a certificate for servers."
        ) from error
    begin_s, end_s = (ssl.cert_time_to_seconds(found[name]) for name in ("notBefore", "notAfter"))
    return Certificate(names_of(found), begin_s, end_s)


def _check_time(files: TlsFiles, certificate: Certificate, now_s: float) -> None:
    """Raises SettingsError for a certificate that is not valid now, in Unix time."""
    if not certificate.not_before_s <= now_s < certificate.not_after_s:
        begin, end = in_utc(certificate.not_before_s), in_utc(certificate.not_after_s)
        raise SettingsError(
            f"{files.describe('certificate')}: it is valid from {begin} to {end}, and now is {in_utc(now_s)}.",
            "Renew the certificate, or set the clock right.",
        )


def _signature_of(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """Changes when a file is written or replaced; missing files are left out."""
    found = []
    for path in (files.certificate, files.key, files.client_ca):
        if path is not None:
            with suppress(OSError):
                state = os.stat(path)  # noqa: PTH116  a few times a second
                found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)
