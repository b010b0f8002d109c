"""How commands reach a service: address, API key, certificates; by the client library or a single GET request."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import orjson

from ocrsvc.cli.options import FILE, gathered, option
from ocrsvc.client.request import API_KEY_VARIABLE, key_header
from ocrsvc.connections.client_tls import client_context, context_of_own_service
from ocrsvc.errors import OperatorError, Unreachable
from ocrsvc.settings.load import read_settings

if TYPE_CHECKING:
    from ocrsvc.client import Client

_MAX_KEY_CHARACTERS: Final = 1000
_ANSWER_S: Final = 10.0
_UNIX: Final = "unix:"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  the address to use if it listens on all
_KEY_CODES: Final = {"key_missing", "key_refused", "scope_missing"}
_SHOWN_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class Access:
    """Files of an API key, CA certificates and a client certificate, read at first use."""

    key_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = None

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """The files of the client certificate and its key."""
        return None if self.cert is None else (self.cert, self.cert_key or self.cert)

    def client(self, addresses: str) -> Client:
        """A client of the services at these comma-separated addresses. Raises OperatorError."""
        try:
            from ocrsvc.client import Client
        except ModuleNotFoundError as error:
            remedy = "Install the extra: pip install '.[client]'."
            raise OperatorError(f"The package {error.name} is missing.", remedy) from error
        urls: str | list[str] = addresses.split(",") if "," in addresses else addresses
        return Client(urls, api_key=read_key(self.key_file), ca=self.ca, certificate=self.certificate)

    def find(self, url: str | None) -> tuple[str, ssl.SSLContext | None]:
        """A service's URL (default: as OCRSVC_BIND and TLS settings say) and its TLS context. Raises OperatorError."""
        context = client_context(self.ca, self.cert, self.cert_key)
        if url is not None:
            return url, context
        settings = read_settings()
        if settings.tls_certificate is None:
            return address_of(settings.bind), context
        if self.ca is None:
            context = context_of_own_service(settings.tls_certificate, self.cert, self.cert_key)
        return address_of(settings.bind, "https"), context


_file: Final = partial(option, section="Service", type=FILE)
_TLS: Final = (
    _file("--ca", help="CA certificate of the service, in PEM."),
    _file("--cert", help="Client certificate, in PEM."),
    _file("--cert-key", help="Key of the client certificate, in PEM; by default in the same file."),
)
_KEY: Final = _file("--key-file", help=f"File with the API key; by default the variable {API_KEY_VARIABLE}.")
ACCESS: Final = (_KEY, *_TLS)
tls_access: Final = gathered("access", Access, *_TLS)
service_access: Final = gathered("access", Access, *ACCESS)


def read_key(file: Path | None) -> str:
    """The API key in the file, else in the environment; empty without one. Raises OperatorError."""
    if file is None:
        return os.environ.get(API_KEY_VARIABLE, "").strip()
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        what = f"The key file {file} cannot be read: {error.strerror}."
        raise OperatorError(what, "Check its name and permissions.") from error
    except UnicodeDecodeError:
        key = ""
    if not key or len(key) > _MAX_KEY_CHARACTERS or len(key.split()) != 1:
        raise OperatorError(f"{file} is not a key file.", "It must contain one key as `ocrsvc keys add` printed it.")
    return key


def address_of(bind: str, scheme: str = "http") -> str:
    """The URL of a service that listens on this address."""
    if bind.startswith(_UNIX):
        return bind
    host, _, port = bind.rpartition(":")
    host = _ANY_ADDRESS.get(host.strip("[]"), host.strip("[]"))
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def fetch(url: str, path: str, key: str = "", context: ssl.SSLContext | None = None) -> bytes:
    """The body of a successful GET. Raises OperatorError, Unreachable."""
    connection = connect(url, _ANSWER_S, context)
    try:
        connection.request("GET", path, headers=key_header(key) if key else {})
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        remedy = "Check its address and that it runs."
        if "WRONG_VERSION_NUMBER" in str(error):
            remedy = "It speaks no TLS: use http://."
        elif isinstance(error, ssl.SSLError):
            remedy = "A certificate of a private CA needs --ca, a service that asks for client certificates --cert."
        reason = getattr(error, "strerror", None) or error
        raise Unreachable(f"{url} cannot be reached: {reason}.", remedy) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise refusal_of(f"{url}{path}", response.status, body)
    return body


def connect(url: str, limit_s: float, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """Open a connection; the context verifies certificates, or else the system's CAs do. Raises OperatorError."""
    if url.startswith(_UNIX):
        return _UnixConnection(url.removeprefix(_UNIX), limit_s)
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=limit_s, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit_s)
    except ValueError as error:
        raise OperatorError(f"{url} is not an address: {error}.", "Write http://host:port.") from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, limit_s: float) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def refusal_of(address: str, status: int, body: bytes) -> OperatorError:
    """The error for a response other than 200, with the service's problem detail, else the start of the body."""
    remedy = "Check the address and its http:// or https://; see the service's log."
    try:
        problem = orjson.loads(body)
        detail, remedy, code = str(problem["detail"]), problem.get("remedy") or remedy, problem.get("code")
    except (orjson.JSONDecodeError, TypeError, KeyError):
        detail, code = " ".join(body[:_SHOWN_BYTES].decode("utf-8", "replace").split()), None
    if code in _KEY_CODES:
        remedy = f"Use a key with the scope operate: --key-file or {API_KEY_VARIABLE}."
    return OperatorError(f"{address} answers {status}{f': {detail}' if detail else '.'}", remedy)
