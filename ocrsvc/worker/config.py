"""gunicorn's settings, made from ours; the check of its command line flags, which win; and gRPC's listeners."""

import math
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ocrsvc.errors import SettingsError
from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.worker.gunicorn_internals import RecyclingWorker

# Clients reuse idle connections for up to a minute; a server that closes earlier races with their next request. A
# stopping worker waits for event_loop.STOP_LINGER_S.
_KEEPALIVE_S: Final = 75
# Limits the heartbeat of a worker's main loop; requests have their own deadline.
_TIMEOUT_S: Final = 30
# Time to send the last responses, beyond the longest deadline.
_LAST_ANSWERS_S: Final = 5
_BACKLOG: Final = 2048
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a mount point; gunicorn makes a file for each worker, which is closed at once

# The accepted values of gunicorn's settings, and why others are refused.
_ONLY_VALUES: Final[Mapping[str, tuple[Sequence[object], str]]] = {
    "preload_app": (
        (False,),
        "--preload loads the application in the arbiter, where nothing may touch a model or CUDA",
    ),
    "reuse_port": (
        (False,),
        "--reuse-port gives each worker an accept queue of its own, which is lost with the worker",
    ),
    "protocol": (("http",), "--protocol {}: the event loop reads plain HTTP/1.1 only"),
    "http2_cleartext": (("off",), "--http2-cleartext {}: the event loop reads plain HTTP/1.1 only"),
    # Version 2 is binary, and its first bytes look like the end of a request head.
    "proxy_protocol": (("off", "v1"), "--proxy-protocol {}: only version 1 is supported, with --proxy-protocol v1"),
}


def configuration(settings: Settings, plan: ThreadPlan) -> Mapping[str, object]:
    """gunicorn's settings, by its own names."""
    return {
        "bind": addresses(settings),
        "workers": plan.workers,
        "threads": plan.threads,
        "worker_class": "ocrsvc.worker.gunicorn_internals.RecyclingWorker",
        "logger_class": f"ocrsvc.worker.logger.{'JsonLogger' if settings.log_format == 'json' else 'LastingLogger'}",
        "worker_connections": max(1000, 2 * plan.threads),
        "backlog": _BACKLOG,
        "keepalive": _KEEPALIVE_S,
        "timeout": _TIMEOUT_S,
        "graceful_timeout": math.ceil(settings.deadline_s) + _LAST_ANSWERS_S,
        "max_requests": settings.max_requests,
        "max_requests_jitter": settings.max_requests_jitter,
        "loglevel": settings.log_level,
        "pidfile": None if settings.pidfile is None else str(settings.pidfile),
        **_tls(settings),
        "worker_tmp_dir": str(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK) else None,
        # Its thread would run in the arbiter, and all services of a user would share its socket.
        "control_socket_disable": True,
    }


def addresses(settings: Settings) -> list[str]:
    """Where gunicorn listens: OCRSVC_BIND, and the chosen adapters' usual ports on the same host, each once."""
    host = settings.bind.rpartition(":")[0]
    usual = (f"{host}:{adapters()[name].port}" for name in settings.usual_ports)
    return list(dict.fromkeys((settings.bind, *usual)))


def _tls(settings: Settings) -> Mapping[str, object]:
    """Make gunicorn report requests as https; the event loop itself does TLS."""
    return {} if settings.tls_certificate is None else {"certfile": str(settings.tls_certificate)}


def check_server(config: Any, settings: Settings) -> None:
    """Raises SettingsError for flags of gunicorn with which the service would lose requests."""
    if not issubclass(config.worker_class, RecyclingWorker):
        raise SettingsError(
            f"-k {config.worker_class_str}: this worker class cannot serve an OCR engine: gevent and asgi run native "
            "calls one after the other in the loop that sends the heartbeat, sync serves one request at a time, and "
            "gthread stops before its successor is ready.",
            "Omit -k: the service sets its own worker class.",
        )
    if not config.timeout:
        raise SettingsError("--timeout 0 never ends a worker that hangs.", "Omit the flag.")
    for name, (values, reason) in _ONLY_VALUES.items():
        if getattr(config, name) not in values:
            raise SettingsError(f"{reason.format(getattr(config, name))}.", "Omit the flag.")
    # gunicorn's own TLS would block the event loop during each handshake.
    ours = _tls(settings)
    for name, setting in config.settings.items():
        if setting.section == "SSL" and setting.cli and setting.get() != ours.get(name, setting.default):
            raise SettingsError(
                f"{setting.cli[0]} configures gunicorn's own TLS, which this service does not use.",
                "Omit the flag, and set OCRSVC_TLS_CERTIFICATE and OCRSVC_TLS_KEY.",
            )


def listen(address: str) -> socket.socket:
    """Open a listening socket for gRPC at "host:port", "[IPv6]:port" or "unix:path". Raises SettingsError."""
    try:
        if address.startswith("unix:"):
            return _listen_unix(Path(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"OCRSVC_GRPC_BIND: cannot listen on {address}: {error.strerror or error}.", "Choose a free address."
        ) from error


def address_of(listener: socket.socket) -> str:
    """The listener's address, in the form that `listen` accepts."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if listener.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def _listen_unix(path: Path) -> socket.socket:
    """Listen on a Unix socket; a socket file that an earlier service left is removed, any other file is not."""
    with suppress(FileNotFoundError):
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
