"""The gRPC listening sockets, which the arbiter opens and all workers share.

Python's own socket with its default backlog aside, this is what gunicorn does for HTTP. Never with SO_REUSEPORT, which
gives each worker a queue of its own that is lost with the worker.
"""

from __future__ import annotations

import contextlib
import socket
import stat
from pathlib import Path
from typing import Final

from ocrsvc.errors import SettingsError

_BACKLOG: Final = 2048


def listen(address: str) -> socket.socket:
    """A listening socket at "host:port", "[IPv6]:port" or "unix:path".

    Raises:
        SettingsError: It cannot be bound.
    """
    try:
        if address.startswith("unix:"):
            return _listen_unix(Path(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"OCRSVC_GRPC_BIND: {address} cannot be listened on: {error.strerror or error}.", "Choose a free address."
        ) from error


def address_of(listener: socket.socket) -> str:
    """Where it listens, as `listen` takes it."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if listener.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def _listen_unix(path: Path) -> socket.socket:
    """What an earlier service has left there is removed; anything but a socket is not."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
