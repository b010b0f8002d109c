"""Asks a running service over HTTP, TLS or a Unix socket, with the standard library alone."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import orjson

from ocrsvc.cli.service_access import Access
from ocrsvc.client.request import key_header
from ocrsvc.errors import OperatorError
from ocrsvc.settings.api_key import API_KEY_VARIABLE
from ocrsvc.settings.load import read_settings

_ANSWER_S: Final = 10.0
_UNIX: Final = "unix:"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  what to ask when it listens on all
_KEY_CODES: Final = {"key_missing", "key_refused", "scope_missing"}
_SHOWN_BYTES: Final = 200


def service_of(url: str | None, access: Access) -> tuple[str, ssl.SSLContext | None]:
    """The address to ask, and what to verify it with: as given, else those of the settings' own service.

    Raises:
        OperatorError: The settings, or the files that are named, cannot be used.
    """
    context = access.context()
    if url is not None:
        return url, context
    settings = read_settings()
    if settings.tls_certificate is None:
        return address_of(settings.bind), context
    if access.ca is None:
        from ocrsvc.tls.client_context import context_of_own_service

        context = context_of_own_service(settings.tls_certificate, access.cert, access.cert_key)
    return address_of(settings.bind, is_tls=True), context


def address_of(bind: str, *, is_tls: bool = False) -> str:
    """Where a service that listens on this address can be asked."""
    if bind.startswith(_UNIX):
        return bind
    host, _, port = bind.rpartition(":")
    host = _ANY_ADDRESS.get(host.strip("[]"), host.strip("[]"))
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def fetch(url: str, path: str, key: str = "", context: ssl.SSLContext | None = None) -> bytes:
    """The body of a successful answer to a request with this key, if any. Raises OperatorError, BadOption."""
    status, body = ask(url, path, key_header(key) if key else {}, context)
    if status != http.client.OK:
        raise refusal_of(f"{url}{path}", status, body)
    return body


def ask(
    url: str, path: str, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of the answer to a GET; over TLS verified by the context, or as the system does.

    Raises:
        OperatorError: There is no answer.
    """
    connection = _connect(url, context)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise OperatorError(
            f"{url} does not answer: {error}.",
            "Is the service running, and is this its address? A certificate of an authority of your own needs --ca; a "
            "service that asks for one of its clients' needs --cert.",
        ) from error
    finally:
        connection.close()


def refusal_of(address: str, status: int, body: bytes) -> OperatorError:
    """What the answer of this status says: the detail of the service's own problem, else the beginning of the text."""
    try:
        problem = orjson.loads(body)
        said, remedy, code = str(problem["detail"]), problem.get("remedy"), problem.get("code")
    except (orjson.JSONDecodeError, TypeError, KeyError):
        said, remedy, code = " ".join(body[:_SHOWN_BYTES].decode("utf-8", "replace").split()), None, None
    if code in _KEY_CODES:
        remedy = f"Name a file with a key of the scope operate with --key-file, or set {API_KEY_VARIABLE}."
    what = f"{address} answers {status}: {said}" if said else f"{address} answers {status}."
    return OperatorError(
        what, remedy or "Is this its address, and http:// or https:// as it speaks? Its log says more."
    )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connect(url: str, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if url.startswith(_UNIX):
        return _UnixConnection(url.removeprefix(_UNIX))
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    except ValueError as error:
        raise OperatorError(f"{url} is not an address: {error}.", "Write http://host:port.") from error
