"""Settings of TLS, for HTTP and gRPC together: the service's certificate, its clients' certificates, and HSTS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import Names

NAME_KINDS: Final = ("CN", "DNS", "URI", "EMAIL", "IP")
"""The kinds of names in a client's certificate: the common name of its subject, and its alternative names."""

# The last colon divides, since a URI has some; names of keys have none.
_MAPPED: Final = re.compile(rf"(?:{'|'.join(NAME_KINDS)})=\S(?:.*\S)?:[^\s:=]+")


def _check_names(entries: tuple[str, ...]) -> tuple[str, ...]:
    """The entries, if each is KIND=NAME:KEY and no name has two keys; raises ValueError."""
    names = [entry.rpartition(":")[0] for entry in entries]
    if not all(_MAPPED.fullmatch(entry) for entry in entries) or len({*names}) < len(names):
        raise ValueError("no names of certificates")
    return entries


class TlsSettings(SettingsGroup):
    """TLS on every address but Unix sockets. None of it without a certificate."""

    title = "TLS"

    tls_certificate: Path | None = setting(
        None,
        "File with the service's certificate, and those between it and its authority, in PEM; with it HTTP and gRPC "
        "are served over TLS, but for Unix sockets.",
        accepted="a path",
    )
    tls_key: Path | None = setting(
        None,
        "File with the certificate's private key in PEM, without a password; by default the certificate's own file.",
        accepted="a path",
    )
    tls_client_ca: Path | None = setting(
        None,
        "File with the authorities, in PEM, of which clients must have a certificate, and with their revocation lists "
        "if there are any; by default clients need no certificate.",
        accepted="a path",
    )
    tls_clients: Literal["required", "optional"] = setting(
        "required",
        "Whether clients without a certificate are refused where tls_client_ca is set; a wrong certificate always is.",
    )
    tls_names: Annotated[Names, AfterValidator(_check_names)] = setting(
        (),
        "Which key of OCRSVC_KEYS a client's certificate stands for, by one of its names, such as CN=loader:nightly or "
        "DNS=scan.example.com:scanner; a key that a request carries comes before it.",
        accepted="entries separated by commas (in the file a list), each KIND=NAME:KEY with one of the kinds "
        + ", ".join(NAME_KINDS)
        + ", each name once",
    )
    tls_hsts_s: int = setting(
        31_536_000,
        "How long browsers are to ask for this host over TLS only (Strict-Transport-Security); 0 sends no such header.",
        "s",
        ge=0,
        le=10**9,
    )
