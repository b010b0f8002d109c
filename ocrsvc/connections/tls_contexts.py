"""TLS contexts of the service and of clients, from PEM files: versions, ciphers, certificates."""

from __future__ import annotations

import os
import ssl
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ocrsvc.errors import OperatorError, SettingsError
from ocrsvc.settings.settings import Settings

Role = Literal["certificate", "key", "client_ca"]

ROLES: Final[tuple[Role, ...]] = ("certificate", "key", "client_ca")

# The protocols offered to clients (ALPN), each on ports of its own.
HTTP: Final = "http/1.1"
GRPC: Final = "h2"
# Forward secrecy and authenticated encryption, which all ciphers of TLS 1.3 have.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_REVOCATION_LIST: Final = "-----BEGIN X509 CRL-----"
_WITHOUT_PASSWORD: Final = "Write it without one: openssl pkey -in OLD -out NEW."  # noqa: S105  a sentence
_PEM: Final = "Name a file in PEM, as openssl and ACME clients write it."


class MemoryCopy:
    """A copy of the files in memory, written by the arbiter and read by its workers. Raises OSError without memory.

    Workers thus load files that the arbiter has tested, even if the originals change or are not readable for them.
    OpenSSL loads only from paths, which these files have below /proc. Create it before the fork: workers inherit the
    descriptors.
    """

    def __init__(self) -> None:
        self._descriptors = {role: os.memfd_create(f"tls-{role}") for role in ROLES}
        weakref.finalize(self, lambda descriptors: [*map(os.close, descriptors)], [*self._descriptors.values()])

    def path(self, role: Role) -> Path:
        """The path for this process."""
        return Path(f"/proc/self/fd/{self._descriptors[role]}")

    def write(self, role: Role, text: str) -> None:
        """Replace its content. Raises OSError."""
        os.ftruncate(self._descriptors[role], 0)
        os.pwrite(self._descriptors[role], text.encode(), 0)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The service's certificate chain and private key, loaded from `copy` if there is one.

    `client_ca` has the authorities for client certificates; without it clients are not asked for one. With `required`
    clients without a certificate are refused.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    required: bool = True
    copy: MemoryCopy | None = None

    def source(self, role: Role) -> Path:
        """The path to load a file from."""
        path: Path = self.copy.path(role) if self.copy is not None else getattr(self, role)
        return path

    def describe(self, role: Role) -> str:
        """A file's setting and value, for the beginning of a message."""
        return f"OCRSVC_TLS_{role.upper()} is {str(getattr(self, role))!r}"

    def read(self, role: Role) -> str:
        """A file's text. Raises SettingsError."""
        try:
            return self.source(role).read_text(encoding="utf-8")
        except OSError as error:
            detail = f"{self.describe(role)}: it cannot be read: {error.strerror}."
            raise SettingsError(detail, "Name a file that the service's user may read.") from error
        except ValueError as error:
            raise SettingsError(f"{self.describe(role)}: it is not in PEM.", _PEM) from error


def files_of(settings: Settings) -> TlsFiles | None:
    """The files that the settings name; None without TLS.

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
    """A server context for this protocol (ALPN). Raises SettingsError.

    Session tickets are off, as each worker would use its own ticket keys. TLS 1.2 session ids cannot be switched off,
    so `Handshakes` checks the expiry of a resumed client's certificate; all other changes come with a new context.
    """
    context = make_plain_context(files)
    context.set_alpn_protocols([protocol])
    if files.client_ca is not None:
        text = files.read("client_ca")
        try:
            # From the file, because Python ignores revocation lists in `cadata`.
            context.load_verify_locations(cafile=files.source("client_ca"))
        except OSError as error:
            raise SettingsError(f"{files.describe('client_ca')}: it holds no certificate.", _PEM) from error
        if _REVOCATION_LIST in text:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.verify_mode = ssl.CERT_REQUIRED if files.required else ssl.CERT_OPTIONAL
    return context


def make_plain_context(files: TlsFiles) -> ssl.SSLContext:
    """A server context without client certificates and ALPN. Raises SettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    _check_pair(files)
    try:
        # An empty password keeps OpenSSL from prompting for one.
        context.load_cert_chain(files.source("certificate"), files.source("key"), password="")
    except ssl.SSLError as error:
        raise _refusal_of_pair(files, error) from error
    except OSError as error:
        raise SettingsError(f"{files.describe('key')}: it cannot be read: {error.strerror}.", _PEM) from error
    return context


def _check_pair(files: TlsFiles) -> None:
    own, key = files.read("certificate"), files.read("key")
    if _BEGIN not in own:
        raise SettingsError(f"{files.describe('certificate')}: it holds no certificate.", _PEM)
    if "PRIVATE KEY-----" not in key:
        raise SettingsError(f"{files.describe('key')}: it holds no private key.", "Name the certificate's.")
    if "ENCRYPTED" in key:
        raise SettingsError(f"{files.describe('key')}: it has a password.", _WITHOUT_PASSWORD)


def _refusal_of_pair(files: TlsFiles, error: ssl.SSLError) -> SettingsError:
    if error.reason == "KEY_VALUES_MISMATCH":
        detail = f"{files.describe('key')}: it is not the key of the certificate; {files.describe('certificate')}."
        return SettingsError(detail, "Name the key that the certificate was made for.")
    reason = (error.reason or "it cannot be parsed").lower().replace("_", " ")
    return SettingsError(
        f"{files.describe('certificate')}: OpenSSL refuses it with its key: {reason}.",
        "Use a certificate with a key of ECDSA, Ed25519, or RSA of at least 2048 bits.",
    )


def client_context(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext | None:
    """A client context, or None without arguments. Raises OperatorError.

    Without `ca` the system's authorities are trusted; without `key` the certificate's file has the key, too.
    """
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        _show(context, certificate, key)
    except OSError as error:
        raise _unusable(error, ca, certificate, key) from error
    return context


def context_of_own_service(service: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A client context that trusts only the certificate in this file, at any address; else as `client_context`."""
    try:
        context = context_trusting(service.read_text(encoding="utf-8"))
        _show(context, certificate, key)
    except (OSError, ValueError) as error:
        raise _unusable(error, service, certificate, key) from error
    return context


def context_trusting(text: str) -> ssl.SSLContext:
    """A client context that trusts only the first certificate of a PEM text. Raises ValueError, SSLError."""
    begin = text.index(_BEGIN)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=text[begin : text.index(_END, begin) + len(_END)])
    return context


def _show(context: ssl.SSLContext, certificate: Path | None, key: Path | None) -> None:
    """Load the client's certificate, if it has one. Raises OSError."""
    if certificate is not None:
        # An empty password keeps OpenSSL from prompting for one.
        context.load_cert_chain(certificate, key, password="")


def _unusable(error: Exception, *paths: Path | None) -> OperatorError:
    named = ", ".join(str(path) for path in paths if path is not None)
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return OperatorError(
        f"TLS cannot be used with {named}: {reason}.", "Name files in PEM, and the key of the certificate."
    )
