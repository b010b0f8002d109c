"""The service's TLS certificates and contexts, loaded and tested at the start and when their files change.

Open connections keep their certificate. If new files cannot be used, the old certificates stay in use.
"""

import os
import ssl
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from ocrsvc.connections.client_tls import BEGIN, context_trusting
from ocrsvc.errors import SettingsError
from ocrsvc.settings.settings import Settings

Role = Literal["certificate", "key", "client_ca"]

ROLES: Final[tuple[Role, ...]] = ("certificate", "key", "client_ca")

# The ALPN protocol names; HTTP and gRPC are on separate ports.
HTTP: Final = "http/1.1"
GRPC: Final = "h2"
# TLS 1.2 ciphers with forward secrecy and authenticated encryption; all TLS 1.3 ciphers have both.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_REVOCATION_LIST: Final = "-----BEGIN X509 CRL-----"
_WITHOUT_PASSWORD: Final = "Write it without one: openssl pkey -in OLD -out NEW."  # noqa: S105  a sentence
_PEM: Final = "Name a file in PEM, as openssl and ACME clients write it."
# A context is replaced above this many cached TLS 1.2 sessions: OpenSSL would cache 20,000, which Python cannot change.
MAX_SESSIONS: Final = 1000
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME. `Certificates` checks the validity period itself, with a better message.
_NO_CHECK_TIME: Final = 0x200000
# Kinds of subject alternative names: Python's ssl module's word for each, and the word in the setting tls_names.
_ALTERNATIVE_KINDS: Final = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
# Calls of `do_handshake` per side that complete a handshake in memory; TLS 1.2 needs the most.
_ROUNDS: Final = 3


class MemoryCopy:
    """A copy of the TLS files in memory, written by the arbiter and read by its workers. Raises OSError.

    Workers thus load what the arbiter has tested, even if the files have changed or workers may not read them. OpenSSL
    loads only from paths, which these copies have below /proc. Make the copy before the fork, because workers inherit
    its file descriptors.
    """

    def __init__(self) -> None:
        self._descriptors = {role: os.memfd_create(f"tls-{role}") for role in ROLES}
        weakref.finalize(self, lambda descriptors: [*map(os.close, descriptors)], [*self._descriptors.values()])

    def path(self, role: Role) -> Path:
        """The path from which this process can load the copy of a file."""
        return Path(f"/proc/self/fd/{self._descriptors[role]}")

    def write(self, role: Role, text: str) -> None:
        """Replace the content of the memory copy of a file. Raises OSError."""
        os.ftruncate(self._descriptors[role], 0)
        os.pwrite(self._descriptors[role], text.encode(), 0)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The service's certificate chain and private key, loaded from `copy` if there is one.

    `client_ca` has the authorities for client certificates; without it clients are not asked for a certificate. With
    `required`, clients without a certificate are refused.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    required: bool = True
    copy: MemoryCopy | None = None

    def source(self, role: Role) -> Path:
        """The path from which to load a TLS file: of its copy in memory, if there is one."""
        path: Path = self.copy.path(role) if self.copy is not None else getattr(self, role)
        return path

    def describe(self, role: Role) -> str:
        """The setting that names a file, with its value, as the beginning of a message."""
        return f"OCRSVC_TLS_{role.upper()} is {str(getattr(self, role))!r}"

    def read(self, role: Role) -> str:
        """Read one of the TLS files as text. Raises SettingsError."""
        try:
            return self.source(role).read_text(encoding="utf-8")
        except OSError as error:
            detail = f"{self.describe(role)}: it cannot be read: {error.strerror}."
            raise SettingsError(detail, "Name a file that the service's user may read.") from error
        except ValueError as error:
            raise SettingsError(f"{self.describe(role)}: it is not in PEM.", _PEM) from error


def files_of(settings: Settings) -> TlsFiles | None:
    """The TLS files that the settings name; None without TLS.

    Raises SettingsError for a setting that has no effect without another one.
    """
    names = [name for name in ("tls_key", "tls_client_ca", "tls_names") if getattr(settings, name)]
    if settings.tls_certificate is None and names:
        raise SettingsError(
            f"OCRSVC_{names[0].upper()} is set, but OCRSVC_TLS_CERTIFICATE is not: TLS is off without it.",
            "Set OCRSVC_TLS_CERTIFICATE to the file of the service's certificate.",
        )
    if settings.tls_names and settings.tls_client_ca is None:
        raise SettingsError(
            "OCRSVC_TLS_NAMES is set, but OCRSVC_TLS_CLIENT_CA is not: clients are not asked for certificates.",
            "Set OCRSVC_TLS_CLIENT_CA to the file of the clients' certificate authority.",
        )
    if settings.tls_names and settings.keys is None:
        raise SettingsError(
            "OCRSVC_TLS_NAMES is set, but OCRSVC_KEYS is not: there are no API keys to map certificates to.",
            "Set OCRSVC_KEYS, and add the keys with `ocrsvc keys add`.",
        )
    if settings.tls_certificate is None:
        return None
    key = settings.tls_key or settings.tls_certificate
    return TlsFiles(settings.tls_certificate, key, settings.tls_client_ca, settings.tls_clients == "required")


def make_context(files: TlsFiles, protocol: str) -> ssl.SSLContext:
    """A server context that offers this ALPN protocol. Raises SettingsError.

    Session tickets are off because each worker would use its own ticket keys. TLS 1.2 session ids cannot be turned off,
    so `Handshakes` checks whether the client certificate of a resumed session has expired.
    """
    context = make_plain_context(files)
    context.set_alpn_protocols([protocol])
    if files.client_ca is not None:
        text = files.read("client_ca")
        try:
            # Loaded from the file, because Python ignores revocation lists in `cadata`.
            context.load_verify_locations(cafile=files.source("client_ca"))
        except OSError as error:
            raise SettingsError(f"{files.describe('client_ca')}: it holds no certificate.", _PEM) from error
        if _REVOCATION_LIST in text:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.verify_mode = ssl.CERT_REQUIRED if files.required else ssl.CERT_OPTIONAL
    return context


def make_plain_context(files: TlsFiles) -> ssl.SSLContext:
    """A server context that asks for no client certificate and offers no ALPN protocol. Raises SettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    certificate, key = files.read("certificate"), files.read("key")
    if BEGIN not in certificate:
        raise SettingsError(f"{files.describe('certificate')}: it holds no certificate.", _PEM)
    if "PRIVATE KEY-----" not in key:
        raise SettingsError(f"{files.describe('key')}: it holds no private key.", "Name the certificate's.")
    if "ENCRYPTED" in key:
        raise SettingsError(f"{files.describe('key')}: it has a password.", _WITHOUT_PASSWORD)
    try:
        # An empty password keeps OpenSSL from prompting for one.
        context.load_cert_chain(files.source("certificate"), files.source("key"), password="")
    except ssl.SSLError as error:
        raise _refusal_of_pair(files, error) from error
    except OSError as error:
        raise SettingsError(f"{files.describe('key')}: it cannot be read: {error.strerror}.", _PEM) from error
    return context


def _refusal_of_pair(files: TlsFiles, error: ssl.SSLError) -> SettingsError:
    if error.reason == "KEY_VALUES_MISMATCH":
        detail = f"{files.describe('key')}: it is not the key of the certificate; {files.describe('certificate')}."
        return SettingsError(detail, "Name the key that the certificate was made for.")
    reason = (error.reason or "it cannot be parsed").lower().replace("_", " ")
    return SettingsError(
        f"{files.describe('certificate')}: OpenSSL refuses it with its key: {reason}.",
        "Use a certificate with a key of ECDSA, Ed25519, or RSA of at least 2048 bits.",
    )


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
    """The service's certificates. The arbiter reads the files into memory, from which its workers load them.

    `current` is for new connections; any thread may read it, one thread changes it. `generation` counts reloads.
    `clock` gives Unix time. Raises SettingsError if the files cannot be used.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        self.generation = 0
        self._files, self._clock = files, clock
        # Copies of the current and the next generation, so that a failed reload leaves the current one intact.
        self._copies = (MemoryCopy(), MemoryCopy())
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, 0)

    def have_changed(self) -> bool:
        """Arbiter: whether the files differ from those in use, but not from those at the previous call."""
        # Reload only when two calls see the same files: while a tool writes them, certificate and key do not match.
        before, self._seen_signature = self._seen_signature, _signature_of(self._files)
        return before == self._seen_signature != self._read_signature

    def read_again(self, files: TlsFiles | None = None) -> None:
        """Arbiter: reload the files, or load `files` instead. After a SettingsError nothing has changed."""
        files = files or self._files
        self._read_signature = self._seen_signature = _signature_of(files)
        self.current = self._read(files, self.generation + 1)
        self._files, self.generation = files, self.generation + 1

    def follow(self, generation: int) -> None:
        """Worker: load this generation from the arbiter's copy. After a SettingsError the old contexts stay in use."""
        self.generation = generation
        self.current = _open(replace(self._files, copy=self._copies[generation % 2]))

    def drop_sessions(self) -> None:
        """Worker: replace the contexts if OpenSSL has cached more than MAX_SESSIONS. Raises SettingsError."""
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
    """Format a Unix time as text in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names, such as "DNS=a.example", in a certificate from `getpeercert`, alternative names first."""
    values = certificate or {}
    alternative = [(_ALTERNATIVE_KINDS.get(kind), name) for kind, name in values.get("subjectAltName", ())]
    common = [("CN", name) for pairs in values.get("subject", ()) for kind, name in pairs if kind == "commonName"]
    return tuple(f"{kind}={name}" for kind, name in (*alternative, *common) if kind)


def key_of(names: Iterable[str], entries: Iterable[str]) -> str | None:
    """The name of the API key that the setting tls_names (`entries`) gives to a certificate's `names`, or None."""
    keys = {name: key for name, _, key in (entry.rpartition(":") for entry in entries)}
    return next((keys[name] for name in names if name in keys), None)


def connect_in_memory(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Run a handshake in memory; return the server's certificate as the client parses it. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        for side in (client_side, server_side):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client_side.getpeercert() or {}


def _open(files: TlsFiles) -> Contexts:
    """Make the contexts for HTTP and gRPC, and test the certificate by a handshake in memory. Raises SettingsError.

    Python parses only the certificate of a peer. The handshake also tests that certificate and key fit our ciphers.
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
    """Inode, modification time and size of each file; missing files are left out."""
    signature = []
    for path in (files.certificate, files.key, files.client_ca):
        if path is not None:
            with suppress(OSError):
                state = os.stat(path)  # noqa: PTH116  a few times a second
                signature.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(signature)
