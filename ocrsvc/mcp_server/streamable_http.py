"""Serves the MCP server over streamable HTTP: at a loopback address, or at any with a token."""

from __future__ import annotations

import hmac
import socket
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ocrsvc.errors import OperatorError

PATH: Final = "/mcp"
# JSON around base64, which is four letters for three bytes.
_AROUND_BYTES: Final = 1 << 16
_STOP_S: Final = 5

MOST_SESSIONS: Final = 1000
"""Sessions at once; more are answered 503. Each holds 40 kB, whatever it does."""
IDLE_S: Final = 300.0
"""After so long without a request, or a stream that is open, a session ends; its client begins another."""


def listen(host: str, port: int, token: str) -> socket.socket:
    """A listening socket. Raises OperatorError for one that others reach without a token, and for a taken port."""
    if not token and not _is_loopback(host):
        raise OperatorError(
            f"At {host} others reach the files and the engine.", "Name a file with a token: --token-file FILE."
        )
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OperatorError(
            f"{host}:{port} cannot be listened on: {error.strerror}.", "Choose another port."
        ) from error


def serve(server: MCPServer, listener: socket.socket, token: str, most_bytes: int) -> None:
    """Serve until a signal ends it, to clients that send `Authorization: Bearer TOKEN` where there is a token.

    `most_bytes` is the largest file that a request may hold as base64.
    """
    host = listener.getsockname()[0]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        max_request_body_size=most_bytes * 4 // 3 + _AROUND_BYTES,
        max_sessions=MOST_SESSIONS,
        session_idle_timeout=IDLE_S,
    )
    config = uvicorn.Config(
        _with_token(app, token) if token else app, log_config=None, timeout_graceful_shutdown=_STOP_S, ws="none"
    )
    uvicorn.Server(config).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _with_token(app: ASGIApp, token: str) -> ASGIApp:
    """Passes on the requests that carry the token, and answers 401 to others before anything of them is read."""
    expected = b"Bearer " + token.encode()
    refusal = PlainTextResponse(
        "A token is wanted: Authorization: Bearer TOKEN.\n", HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"}
    )

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        allowed = scope["type"] != "http" or hmac.compare_digest(sent, expected)
        await (app if allowed else refusal)(scope, receive, send)

    return checked
