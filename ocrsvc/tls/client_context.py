"""What a client verifies a service's certificate with, and the certificate that it shows itself."""

from __future__ import annotations

import ssl
from pathlib import Path

from ocrsvc.errors import OperatorError


def client_context(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext | None:
    """For a client; None where all arguments are, which leaves it to the client.

    Args:
        ca: The authorities of services, in PEM; None is those of the system.
        certificate: The client's own, in PEM.
        key: Its key; None where that is in the same file.

    Raises:
        OperatorError: A file cannot be used.
    """
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        named = ", ".join(str(path) for path in (ca, certificate, key) if path is not None)
        reason = getattr(error, "reason", None) or error.strerror or error
        raise OperatorError(
            f"TLS cannot be used with {named}: {reason}.", "Name files in PEM, and the key of the certificate."
        ) from error
    return context


def context_of_own_service(service: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For a client on the service's own machine, which knows its certificate, and asks it by any address.

    Args:
        service: The service's certificate.
        certificate, key: As for `client_context`.

    Raises:
        OperatorError: The file cannot be used.
    """
    context = client_context(service, certificate, key)
    assert context is not None, "with a file there is one"
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
