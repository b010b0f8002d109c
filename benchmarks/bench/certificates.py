"""A certificate authority for benchmarks; it issues certificates as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import trustme

Kind = Literal["ECDSA", "RSA"]

_KEY_TYPES: Final = {"ECDSA": trustme.KeyType.ECDSA, "RSA": trustme.KeyType.RSA}


class Authority:
    """A certificate authority that writes the certificates it issues to one folder.

    Attributes:
        file: The authority's own certificate.
    """

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, kind: Kind) -> dict[str, str]:
        """Issue a certificate for 127.0.0.1, replacing the last of its kind, and return the service's settings for it.

        ECDSA keys use P-256, RSA keys have 2048 bits.
        """
        now = datetime.now(UTC)
        issued = self._ca.issue_cert(
            "127.0.0.1",
            "localhost",
            key_type=_KEY_TYPES[kind],
            not_before=now - timedelta(days=1),
            not_after=now + timedelta(days=90),
        )
        certificate, key = (self._folder / f"{kind}.{suffix}" for suffix in ("pem", "key"))
        _replace(certificate, b"".join(part.bytes() for part in issued.cert_chain_pems))
        _replace(key, issued.private_key_pem.bytes())
        return {"OCRSVC_TLS_CERTIFICATE": str(certificate), "OCRSVC_TLS_KEY": str(key)}


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)
