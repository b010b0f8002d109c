"""TLS certificates: start errors, handshakes, reloads, and warnings before expiry."""

import logging
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support import data_of
from tls_support import RSA, Authority, environment

from ocrsvc.cli.check import describe_tls
from ocrsvc.connections import certificates as certificates_module
from ocrsvc.connections.certificates import (
    HTTP,
    Certificates,
    TlsFiles,
    connect_in_memory,
    files_of,
    key_of,
    make_context,
    names_of,
)
from ocrsvc.connections.client_tls import client_context, context_of_own_service
from ocrsvc.errors import OperatorError, SettingsError
from ocrsvc.settings.load import read_settings
from ocrsvc.telemetry.metrics import TLS_NOT_AFTER, TLS_READS
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.worker_table import WorkerTable
from ocrsvc.worker.certificate_watch import CertificateWatch

_DAY_S = 86400


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def unused_watch() -> CertificateWatch:
    return CertificateWatch(WorkerTable().head, MetricsStore().common, logging.getLogger("test-tls"))


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as refused:
        unused_watch().open(read_settings(environ), is_start=True)
    return str(refused.value)


def key_with_password() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )


def test_a_certificate_and_its_key_are_served_from_two_files_or_one(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue()
    found = unused_watch().open(read_settings(environment(files)), is_start=True)
    assert found is not None
    assert found.current.certificate.names == ("DNS=localhost", "IP=127.0.0.1")
    assert 89 * _DAY_S < found.left_s() < 91 * _DAY_S
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    assert files_of(read_settings({"OCRSVC_TLS_CERTIFICATE": str(both)})) == TlsFiles(both, both)
    assert Certificates(TlsFiles(both, both)).current.certificate.names


WRONG_FILES: list[tuple[str, str, Callable[[Authority, TlsFiles], Any]]] = [
    ("KEY is .*own.key': it cannot be read: No such file", "may read", lambda _, own: own.key.unlink()),
    ("CERTIFICATE is .*: it cannot be read", "may read", lambda _, own: own.certificate.unlink()),
    ("CERTIFICATE is .*: it holds no certificate", "PEM", lambda _, own: own.certificate.write_text("hello")),
    ("CERTIFICATE is .*: it is not in PEM", "PEM", lambda _, own: own.certificate.write_bytes(b"\xff\xfe")),
    ("KEY is .*: it holds no private key", "certificate's", lambda _, own: own.key.write_text("hello")),
    ("KEY is .*: it has a password", "openssl pkey", lambda _, own: own.key.write_bytes(key_with_password())),
    (
        "KEY is .*: it is not the key of the certificate; OCRSVC_TLS_CERT",
        "made for",
        lambda ca, own: ca.issue("other").key.rename(own.key),
    ),
    ("CERTIFICATE is .*: it is valid from .* to .*, and it is", "Renew", lambda ca, _: ca.issue(valid_days=(-9, -1))),
    ("CERTIFICATE is .*: it is valid from .* to .*, and it is", "clock", lambda ca, _: ca.issue(valid_days=(1, 9))),
]


@pytest.mark.parametrize(("message", "remedy", "spoil"), WRONG_FILES)
def test_unusable_tls_files_stop_the_start(
    authority: Authority, message: str, remedy: str, spoil: Callable[[Authority, TlsFiles], Any]
) -> None:
    files = authority.issue()
    spoil(authority, files)
    refused = refusal(environment(files))
    assert re.search(f"OCRSVC_TLS_{message}", refused), refused
    assert remedy in refused
    assert "BEGIN" not in refused


@pytest.mark.parametrize(("environ", "message"), data_of("wrong_tls"))
def test_contradicting_tls_settings_stop_the_start(environ: dict[str, str], message: str) -> None:
    assert message in refusal(environ)


@pytest.mark.parametrize(("name", "error"), [("wrong.pem", "OCRSVC_TLS_CLIENT_CA is"), ("none.pem", "cannot be read")])
def test_an_invalid_client_ca_stops_the_start(authority: Authority, tmp_path: Path, name: str, error: str) -> None:
    (tmp_path / "wrong.pem").write_text("hello")
    assert error in refusal(environment(authority.issue()) | {"OCRSVC_TLS_CLIENT_CA": str(tmp_path / name)})


def test_sighup_cannot_turn_tls_on(authority: Authority) -> None:
    with pytest.raises(SettingsError, match="SIGHUP cannot turn TLS"):
        unused_watch().open(read_settings(environment(authority.issue())), is_start=False)


def test_old_versions_and_weak_ciphers_are_refused(authority: Authority) -> None:
    server = make_context(authority.issue(key_type=RSA), HTTP)
    old = authority.client()
    # Python deprecates the old TLS version of this client.
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    for client in (old, weak_client(authority, "AES128-SHA"), weak_client(authority, "ECDHE-RSA-AES128-SHA256")):
        with pytest.raises(ssl.SSLError):
            connect_in_memory(server, client)
    assert connect_in_memory(server, weak_client(authority, "ECDHE-RSA-AES128-GCM-SHA256"))


def weak_client(authority: Authority, cipher: str) -> ssl.SSLContext:
    client = authority.client()
    client.check_hostname = False
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(f"{cipher}:@SECLEVEL=0")
    return client


def test_certificate_names_map_to_keys() -> None:
    uri = "spiffe://cluster.local/ns/scan"
    found = names_of({"subjectAltName": (("DNS", "a.example"), ("URI", uri)), "subject": ((("commonName", "a"),),)})
    assert found == ("DNS=a.example", f"URI={uri}", "CN=a")
    keys = (f"URI={uri}:scanner", "CN=a:nightly")
    assert key_of(found, keys) == "scanner"
    assert key_of(("CN=a",), keys) == "nightly"
    assert key_of(("DNS=a",), keys) is None
    assert names_of(None) == ()


def connect_and_close(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Connect and close cleanly, so that OpenSSL keeps the session."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for step in (*[ssl.SSLObject.do_handshake] * 3, ssl.SSLObject.unwrap):
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                step(side)


def watched(files: TlsFiles, clock: Callable[[], float] = lambda: 0.0) -> tuple[CertificateWatch, MetricsStore, Any]:
    store, table = MetricsStore(), WorkerTable()
    watch = CertificateWatch(table.head, store.common, logging.getLogger("test-tls"), clock)
    watch.begin(Certificates(files))
    return watch, store, table.head


def look_twice(watch: CertificateWatch) -> None:
    """Look twice, because files are read once they are unchanged since the last look."""
    watch.look()
    watch.look()


def test_changed_certificate_is_loaded_when_it_is_stable(authority: Authority) -> None:
    watch, store, head = watched(authority.issue())
    certificates = watch.certificates
    assert certificates is not None
    first = certificates.current
    authority.issue(valid_days=(-1, 30))
    watch.look()
    assert certificates.current is first
    watch.look()
    assert certificates.current is not first
    assert head.certificates == certificates.generation == 1
    assert store.read()[TLS_READS.of("ok")][0] == 1
    assert store.read()[TLS_NOT_AFTER.of()][0] == certificates.current.certificate.not_after_s
    assert certificates.left_s() < 31 * _DAY_S
    look_twice(watch)
    assert head.certificates == 1


def test_the_log_warns_of_expiry_once_a_day(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watched(authority.issue(valid_days=(-1, 5)))[0].look()
    assert caplog.text == ""
    watch, _, _ = watched(authority.issue(valid_days=(-80, 10)), lambda: now[0])
    look_twice(watch)
    assert caplog.text.count("The service's certificate expires at") == 1
    now[0] = _DAY_S
    watch.look()
    assert caplog.text.count("The service's certificate expires at") == 2
    # A new certificate that also expires soon causes a warning on the same day.
    authority.issue(valid_days=(-80, 11))
    look_twice(watch)
    assert caplog.text.count("The service's certificate expires at") == 3


def test_sessions_of_old_clients_do_not_accumulate(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates_module, "MAX_SESSIONS", 3)
    own = Certificates(authority.issue())
    first = own.current
    client = weak_client(authority, "ECDHE-ECDSA-AES128-GCM-SHA256")
    for _ in range(3):
        connect_and_close(first.http, client)
    own.drop_sessions()
    assert own.current is first
    connect_and_close(first.http, client)
    own.drop_sessions()
    assert own.current is not first


def test_ocrsvc_check_describes_the_certificate(authority: Authority) -> None:
    files = authority.issue()
    assert describe_tls(read_settings({})) == "off"
    given = read_settings(environment(files))
    assert describe_tls(given).startswith("DNS=localhost, IP=127.0.0.1, until 20")
    files.key.unlink()
    assert "cannot be read" in describe_tls(given)


def test_client_contexts_trust_only_the_given_authority(authority: Authority) -> None:
    assert client_context() is None
    own = authority.issue()
    context = client_context(authority.file, own.certificate, own.key)
    assert context is not None
    assert context.get_ca_certs()
    with pytest.raises(OperatorError, match=r"none\.pem: No such file"):
        client_context(authority.file.with_name("none.pem"))
    with pytest.raises(OperatorError, match="key"):
        client_context(authority.file, own.certificate, authority.file)
    with pytest.raises(OperatorError, match=r"own\.key"):
        context_of_own_service(own.key)


def test_a_revoked_certificate_of_a_client_is_refused(authority: Authority, tmp_path: Path) -> None:
    own, good, bad = authority.issue(), authority.issue("good"), authority.issue("bad")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.file.read_bytes() + authority.revoke(bad))
    server = make_context(TlsFiles(own.certificate, own.key, both), HTTP)
    clients = [authority.client(own) for own in (good, bad)]
    for client in clients:
        client.check_hostname = False
    assert connect_in_memory(server, clients[0])
    with pytest.raises(ssl.SSLError, match="revoked"):
        connect_in_memory(server, clients[1])
