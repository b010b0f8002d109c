"""Serves the MCP server over streamable HTTP: at a loopback address, or at any with a token."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any, Final

import uvicorn
from mcp.server.mcpserver import MCPServer

from ocrsvc.errors import OperatorError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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
    app: App = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        max_request_body_size=most_bytes * 4 // 3 + _AROUND_BYTES,
        max_sessions=MOST_SESSIONS,
        session_idle_timeout=IDLE_S,
    )
    checked = TokenCheck(app, token) if token else app
    config = uvicorn.Config(checked, log_config=None, timeout_graceful_shutdown=_STOP_S, ws="none")
    uvicorn.Server(config).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class TokenCheck:
    """Passes on the requests that carry the token, and answers 401 to others before anything of them is read."""

    def __init__(self, app: App, token: str) -> None:
        self._app, self._expected = app, b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection of ASGI."""
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(sent, self._expected):
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"A token is wanted: Authorization: Bearer TOKEN.\n"})
