"""The service's certificate itself: its names and its time, and that it works with its key.

Python reads a certificate only of a peer. So a client in this process connects to the pair, in memory, and trusts
nothing but the certificate: that proves, too, that the pair can serve with the ciphers that are allowed.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.connections.client_names import names_of
from ocrsvc.connections.tls_files import TlsFiles, make_plain_context
from ocrsvc.errors import SettingsError

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the time is checked here, with its own sentence.
_NO_CHECK_TIME: Final = 0x200000
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
# TLS 1.2 takes three.
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Certificate:
    """What it says.

    Attributes:
        names: Such as "DNS=ocr.example.com".
        not_before_s, not_after_s: From when to when it is valid, in Unix time.
    """

    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float


def read_certificate(files: TlsFiles) -> Certificate:
    """The first certificate in the file, which works with its key. Raises SettingsError."""
    first = first_certificate(files.read("certificate"))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    server = make_plain_context(files)
    try:
        client.load_verify_locations(cadata=first)
        found = connect_in_memory(server, client)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or "the handshake fails"
        raise SettingsError(
            f"{files.describe('certificate')}: no client can use it: {reason}.", "Use a certificate for servers."
        ) from error
    return Certificate(
        names_of(found), ssl.cert_time_to_seconds(found["notBefore"]), ssl.cert_time_to_seconds(found["notAfter"])
    )


def first_certificate(text: str) -> str:
    """The first certificate of a PEM file. Raises ValueError where there is none."""
    begin = text.index(_BEGIN)
    return text[begin : text.index(_END, begin) + len(_END)]


def check_time(files: TlsFiles, certificate: Certificate, now_s: float) -> None:
    """Raises SettingsError for a certificate that is not valid now, in Unix time."""
    if not certificate.not_before_s <= now_s < certificate.not_after_s:
        begin, end = (in_utc(time_s) for time_s in (certificate.not_before_s, certificate.not_after_s))
        raise SettingsError(
            f"{files.describe('certificate')}: it is valid from {begin} to {end}, and now is {in_utc(now_s)}.",
            "Renew the certificate, or set the clock right.",
        )


def in_utc(time_s: float) -> str:
    """A time for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def connect_in_memory(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """What a client of one context sees of the certificate of the other. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    done = {one: False, other: False}
    for _ in range(_ROUNDS):
        for side in [side for side, is_done in done.items() if not is_done]:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done[side] = True
    return one.getpeercert() or {}
