"""The service's TLS certificates: loaded and tested at the start, and reloaded when their files change.

Open connections keep their certificate. If new files cannot be used, the old certificates stay in use.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
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

# TLS 1.2 sessions that OpenSSL may cache. The cache is not used, holds 20,000, and Python cannot switch it off.
MAX_SESSIONS: Final = 1000
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME: `Certificates` has a better message.
_NO_CHECK_TIME: Final = 0x200000
# Kinds of alternative names: as Python's ssl names them, and as the setting tls_names does.
_ALTERNATIVE_KINDS: Final = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
# Round trips of a TLS 1.2 handshake in memory.
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Certificate:
    """The names in the service's certificate, such as "DNS=ocr.example.com", and its validity in Unix time."""

    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float


@dataclass(frozen=True, slots=True)
class Contexts:
    """The TLS contexts for new HTTP and gRPC connections, and their certificate."""

    http: ssl.SSLContext
    grpc: ssl.SSLContext
    certificate: Certificate


class Certificates:
    """The service's certificates. The arbiter reads the files into memory; its workers load them from there.

    `current` is for new connections; any thread may read it, one thread changes it. `generation` counts the changes.
    `clock` gives Unix time. Raises SettingsError if the files cannot be used.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        self.generation = 0
        self._files, self._clock = files, clock
        # Copies of this and the next generation: a failed reload does not damage the first.
        self._copies = (MemoryCopy(), MemoryCopy())
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, 0)

    def have_changed(self) -> bool:
        """Arbiter: whether the files have changed since they were read, but not since the last call.

        Certificate and key are written one after the other; in between they do not match.
        """
        before, self._seen_signature = self._seen_signature, _signature_of(self._files)
        return before == self._seen_signature != self._read_signature

    def read_again(self, files: TlsFiles | None = None) -> None:
        """Arbiter: reload the files, or load others. Raises SettingsError, and then changes nothing."""
        files = files or self._files
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, self.generation + 1)
        self._files, self.generation = files, self.generation + 1

    def follow(self, generation: int) -> None:
        """Worker: load the arbiter's certificates. Raises SettingsError, and then keeps its contexts."""
        self.generation = generation
        self.current = _open(replace(self._files, copy=self._copies[generation % 2]))

    def drop_sessions(self) -> None:
        """Worker: replace the contexts if OpenSSL caches too many sessions. Raises SettingsError."""
        contexts = (self.current.http, self.current.grpc)
        if any(context.session_stats()["number"] > MAX_SESSIONS for context in contexts):
            self.follow(self.generation)

    def left_s(self) -> float:
        """Seconds until the service's certificate expires; negative after that."""
        return self.current.certificate.not_after_s - self._clock()

    def _read(self, files: TlsFiles, generation: int) -> Contexts:
        copy = self._copies[generation % 2]
        for role in ROLES:
            if getattr(files, role) is not None:
                copy.write(role, files.read(role))
        contexts, now_s = _open(replace(files, copy=copy)), self._clock()
        begin_s, end_s = contexts.certificate.not_before_s, contexts.certificate.not_after_s
        if not begin_s <= now_s < end_s:
            raise SettingsError(
                f"{files.describe('certificate')}: it is valid from {in_utc(begin_s)} to {in_utc(end_s)}, "
                f"and it is {in_utc(now_s)} now.",
                "Renew the certificate, or correct the clock.",
            )
        return contexts


def in_utc(time_s: float) -> str:
    """A Unix time as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a certificate from `SSLSocket.getpeercert`, alternative names first, such as "DNS=a.example"."""
    values = certificate or {}
    alternative = [(_ALTERNATIVE_KINDS.get(kind), name) for kind, name in values.get("subjectAltName", ())]
    common = [("CN", name) for pairs in values.get("subject", ()) for kind, name in pairs if kind == "commonName"]
    return tuple(f"{kind}={name}" for kind, name in (*alternative, *common) if kind)


def key_of(names: Iterable[str], entries: Iterable[str]) -> str | None:
    """The key of a certificate with these names by `entries`, the setting tls_names; None if there is none."""
    keys = {name: key for name, _, key in (entry.rpartition(":") for entry in entries)}
    return next((keys[name] for name in names if name in keys), None)


def connect_in_memory(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Run a handshake in memory; returns the server's certificate as the client sees it. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        for side in (client_side, server_side):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client_side.getpeercert() or {}


def _open(files: TlsFiles) -> Contexts:
    """Make both contexts, and test the first certificate in the file in a handshake in memory. Raises SettingsError.

    Python parses only a peer's certificate. The handshake also shows that certificate and key work with our ciphers.
    """
    server = make_plain_context(files)
    try:
        client = context_trusting(files.read("certificate"))
        client.verify_flags |= _NO_CHECK_TIME
        peer = connect_in_memory(server, client)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or "the handshake fails"
        raise SettingsError(
            f"{files.describe('certificate')}: clients reject it: {reason}.", "Use a server certificate."
        ) from error
    begin_s, end_s = (ssl.cert_time_to_seconds(peer[name]) for name in ("notBefore", "notAfter"))
    certificate = Certificate(names_of(peer), begin_s, end_s)
    return Contexts(make_context(files, HTTP), make_context(files, GRPC), certificate)


def _signature_of(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """Inode, time and size of the files; missing files are left out."""
    signature = []
    for path in (files.certificate, files.key, files.client_ca):
        if path is not None:
            with suppress(OSError):
                state = os.stat(path)  # noqa: PTH116  a few times a second
                signature.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(signature)
