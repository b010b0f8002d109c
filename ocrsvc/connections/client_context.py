"""What a client verifies a service's certificate with, and the certificate that it shows itself."""

from __future__ import annotations

import ssl
from pathlib import Path

from ocrsvc.connections.certificates import first_certificate
from ocrsvc.errors import OperatorError


def client_context(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext | None:
    """For a client; None where all arguments are, which leaves it to the client. Raises OperatorError.

    All files are in PEM. Without `ca` the system's authorities are trusted; without `key` it is with the certificate.
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
    """For a client on the service's own machine, which trusts the certificate in this file alone, at any address.

    The rest is as for `client_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=first_certificate(service.read_text(encoding="utf-8")))
        _show(context, certificate, key)
    except (OSError, ValueError) as error:
        raise _unusable(error, service, certificate, key) from error
    return context


def _show(context: ssl.SSLContext, certificate: Path | None, key: Path | None) -> None:
    """Have the client show a certificate, if it has one. Raises OSError."""
    if certificate is not None:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")


def _unusable(error: Exception, *paths: Path | None) -> OperatorError:
    named = ", ".join(str(path) for path in paths if path is not None)
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return OperatorError(
        f"TLS cannot be used with {named}: {reason}.", "Name files in PEM, and the key of the certificate."
    )
