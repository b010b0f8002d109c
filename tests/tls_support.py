"""Helpers for TLS tests: a certificate authority that writes certificate files, and client TLS contexts."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ocrsvc.connections.certificates import TlsFiles

_DAY = timedelta(days=1)
EC, RSA = trustme.KeyType.ECDSA, trustme.KeyType.RSA


def environment(own: TlsFiles) -> dict[str, str]:
    return {"OCRSVC_TLS_CERTIFICATE": str(own.certificate), "OCRSVC_TLS_KEY": str(own.key)}


class Authority:
    """A certificate authority: `file` is its own certificate; issued ones are written to its folder."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA(key_type=EC)
        self._folder = folder
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(
        self,
        stem: str = "own",
        *names: str,
        common_name: str | None = None,
        valid_days: tuple[float, float] = (-1, 90),
        key_type: trustme.KeyType = EC,
    ) -> TlsFiles:
        """Issue a certificate STEM.pem with key STEM.key; `valid_days` are its start and end in days from now."""
        now = datetime.now(UTC)
        begin, end = (now + timedelta(days=days) for days in valid_days)
        issued = self._ca.issue_cert(
            *(names or ("localhost", "127.0.0.1")),
            common_name=common_name,
            not_before=begin,
            not_after=end,
            key_type=key_type,
        )
        files = TlsFiles(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        files.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        files.key.write_bytes(issued.private_key_pem.bytes())
        return files

    def revoke(self, files: TlsFiles) -> bytes:
        """A revocation list (PEM) that contains this certificate."""
        now = datetime.now(UTC)
        serial = x509.load_pem_x509_certificate(files.certificate.read_bytes()).serial_number
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        issuer = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(now - _DAY)
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        found = builder.next_update(now + _DAY).add_revoked_certificate(revoked).sign(key, hashes.SHA256())
        return found.public_bytes(serialization.Encoding.PEM)

    def client(self, own: TlsFiles | None = None, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.file))
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context
