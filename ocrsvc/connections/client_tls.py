"""TLS contexts for clients: the authorities to trust, and the client's certificate."""

import ssl
from pathlib import Path
from typing import Final

from ocrsvc.errors import OperatorError

BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def client_context(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext | None:
    """A client context, or None without arguments. Raises OperatorError.

    Without `ca` it trusts the system's authorities; without `key` it loads the key from the certificate's file.
    """
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            # An empty password keeps OpenSSL from prompting for one.
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise _unusable(error, ca, certificate, key) from error
    return context


def context_of_own_service(service: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A client context that trusts only the certificate in file `service`, for any host. Raises OperatorError."""
    try:
        context = context_trusting(service.read_text(encoding="utf-8"))
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise _unusable(error, service, certificate, key) from error
    return context


def context_trusting(text: str) -> ssl.SSLContext:
    """A client context that trusts only the first certificate of a PEM text. Raises ValueError, SSLError."""
    begin = text.index(BEGIN)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=text[begin : text.index(_END, begin) + len(_END)])
    return context


def _unusable(error: Exception, *paths: Path | None) -> OperatorError:
    named = ", ".join(str(path) for path in paths if path is not None)
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return OperatorError(
        f"TLS cannot be used with {named}: {reason}.", "Name files in PEM, and the key of the certificate."
    )
