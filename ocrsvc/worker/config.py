"""Builds gunicorn's settings from ours, checks gunicorn's flags, which override the settings, and opens listeners."""

import errno
import math
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from gunicorn import sock, systemd

from ocrsvc.errors import SettingsError
from ocrsvc.plugins import adapters
from ocrsvc.settings.describe import accepted
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.worker.gunicorn_internals import RecyclingWorker

# Clients reuse idle connections for up to a minute; if the server closed one earlier, a client's next request could
# be lost. A stopping worker closes idle connections after event_loop.STOP_LINGER_S.
_KEEPALIVE_S: Final = 75
# Longest time between two heartbeats of a worker's main loop; requests have their own deadline.
_TIMEOUT_S: Final = 30
# Seconds to send the last responses; the graceful timeout adds them to the longest deadline.
_LAST_ANSWERS_S: Final = 5
_BACKLOG: Final = 2048
_REMEDIES: Final = {
    errno.EACCES: "Ports below 1024 need root or CAP_NET_BIND_SERVICE: choose a higher one.",
    errno.EADDRNOTAVAIL: "This machine has no such address: choose one of its own.",
}
_TRIED_PORTS: Final = 20
_USUAL_PORTS: Final = "OCRSVC_USUAL_PORTS"
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a mount point; gunicorn makes a file for each worker, which is closed at once

# For each gunicorn setting: the accepted values, and the message for any other.
_ONLY_VALUES: Final[Mapping[str, tuple[Sequence[object], str]]] = {
    "preload_app": ((False,), "--preload loads the application in the arbiter, where nothing may touch a model"),
    "reuse_port": ((False,), "--reuse-port gives each worker an accept queue, which is lost with the worker"),
    "protocol": (("http",), "--protocol {}: the event loop reads plain HTTP/1.1 only"),
    "http2_cleartext": (("off",), "--http2-cleartext {}: the event loop reads plain HTTP/1.1 only"),
    # Version 2 is binary, and its first bytes look like the end of a request head.
    "proxy_protocol": (("off", "v1"), "--proxy-protocol {}: only version 1 is supported, with --proxy-protocol v1"),
}


def configuration(settings: Settings, plan: ThreadPlan) -> Mapping[str, object]:
    """Our settings as gunicorn's settings, under gunicorn's names."""
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
        # gunicorn's control thread would run in the arbiter, and all services of a user would share its socket.
        "control_socket_disable": True,
    }


def addresses(settings: Settings) -> list[str]:
    """The addresses to listen on: OCRSVC_BIND, and the ports of OCRSVC_USUAL_PORTS on the same host, deduplicated."""
    host = settings.bind.rpartition(":")[0]
    usual = (f"{host}:{adapters()[name].port}" for name in settings.usual_ports)
    return list(dict.fromkeys((settings.bind, *usual)))


def _tls(settings: Settings) -> Mapping[str, object]:
    """Make gunicorn report requests as https; the event loop itself does TLS."""
    return {} if settings.tls_certificate is None else {"certfile": str(settings.tls_certificate)}


def check_server(config: Any, settings: Settings) -> None:
    """Raises SettingsError for gunicorn flags that would make the service lose requests."""
    if not issubclass(config.worker_class, RecyclingWorker):
        detail = f"-k {config.worker_class_str}: this worker class cannot serve an OCR engine."
        raise SettingsError(detail, "Omit -k: the service sets its own worker class.")
    if not 1 <= config.workers <= 256:
        raise SettingsError(f"--workers is {config.workers}: accepted is {accepted('workers')}.")
    if not config.timeout:
        raise SettingsError("--timeout 0 never ends a worker that hangs.", "Omit the flag.")
    for name, (values, reason) in _ONLY_VALUES.items():
        if getattr(config, name) not in values:
            raise SettingsError(f"{reason.format(getattr(config, name))}.", "Omit the flag.")
    # gunicorn's own TLS would block the event loop during each handshake.
    ours = _tls(settings)
    for name, setting in config.settings.items():
        if setting.section == "SSL" and setting.cli and setting.get() != ours.get(name, setting.default):
            detail = f"{setting.cli[0]} configures gunicorn's own TLS, which this service does not use."
            raise SettingsError(detail, "Omit the flag, and set OCRSVC_TLS_CERTIFICATE and OCRSVC_TLS_KEY.")


def open_listeners(server: Any, settings: Settings) -> None:
    """Open gunicorn's listening sockets before gunicorn does, unless it inherits them. Raises SettingsError."""
    is_inherited = server.master_pid or systemd.listen_fds(unset_environment=False)
    if is_inherited or any(isinstance(address, int) for address in server.cfg.address):
        return
    variables = dict.fromkeys(addresses(settings), _USUAL_PORTS) | {settings.bind: "OCRSVC_BIND"}
    for text, address in zip(server.cfg.bind, server.cfg.address, strict=True):
        with _listening(variables.get(text, "--bind"), text):
            if isinstance(address, str):
                _check_unused(address)
            open_socket = sock._sock_type(address)  # noqa: SLF001  see tests/test_gunicorn.py
            server.LISTENERS = [*server.LISTENERS, open_socket(address, server.cfg, server.log)]


def listen(address: str) -> socket.socket:
    """Open a listening socket for gRPC at "host:port", "[IPv6]:port" or "unix:path". Raises SettingsError."""
    with _listening("OCRSVC_GRPC_BIND", address):
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            # Removes a socket file that an earlier service left behind, but no other kind of file.
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.stat().st_mode):
                    _check_unused(str(path))
                    path.unlink()
            return socket.create_server(str(path), family=socket.AF_UNIX, backlog=_BACKLOG)
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_BACKLOG)


@contextmanager
def _listening(variable: str, address: str) -> Iterator[None]:
    """Convert errors of a block that listens at `address` to SettingsError, which names the `variable` or flag."""
    try:
        yield
    except (OSError, ValueError, OverflowError) as error:
        host, _, port = address.rpartition(":")
        code = getattr(error, "errno", None) or 0
        if code == errno.EADDRINUSE and port.isdecimal():
            free = _free_port_after(host, int(port))
            remedy = f"set {variable}={host}:{free}" if free else "choose another one"
            if variable == _USUAL_PORTS:
                remedy = f"leave its adapter out of {variable}"
            raise SettingsError(f"Port {port} is in use: {remedy}.") from error
        # `create_server` adds text to errors; `__context__` is the original. Name resolution errors have codes below 0.
        cause = error.__context__ or error
        reason = os.strerror(code) if code > 0 else getattr(cause, "strerror", None) or str(cause).rstrip(".")
        remedy = _REMEDIES.get(code if port.isdecimal() else 0, "Choose a free address.")
        raise SettingsError(f"{variable}: cannot listen on {address}: {reason}.", remedy) from error


def _free_port_after(host: str, used: int) -> int | None:
    """The first of the _TRIED_PORTS ports after `used` that this process can listen at; None if there is none."""
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    for port in range(used + 1, min(used + _TRIED_PORTS, 65_535) + 1):
        with suppress(OSError), socket.create_server((host.strip("[]"), port), family=family):
            return port
    return None


def _check_unused(path: str) -> None:
    """Raises OSError if a program listens on this Unix socket, so that its socket file is not replaced."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        if probe.connect_ex(path) in (0, errno.EAGAIN):
            raise OSError(errno.EADDRINUSE, path)


def address_of(listener: socket.socket) -> str:
    """The listener's address, in the form that `listen` accepts."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if listener.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"
