"""Refusal of gunicorn flags with which requests would be lost."""

from __future__ import annotations

from typing import Final, Protocol

from ocrsvc.errors import SettingsError
from ocrsvc.worker.gunicorn_worker import RecyclingWorker

_REFUSED_FLAGS: Final = {
    "is_ssl": "--certfile: the event loop reads plain HTTP/1.1 only; have a proxy end TLS (see deploy/)",
    "preload_app": "--preload loads the application in the arbiter, where nothing may touch a model or CUDA",
    "reuse_port": "--reuse-port gives each worker an accept queue of its own, which is lost with the worker",
}


_ONLY_VALUES: Final = {
    "protocol": ("http", "--protocol"),
    "http2_cleartext": ("off", "--http2-cleartext"),
}
# Version 2 is binary, and its beginning looks like the end of a head.
_PROXY_PROTOCOLS: Final = ("off", "v1")


class Config(Protocol):
    """The part of gunicorn's configuration that is checked; flags are already in it."""

    worker_class: type
    worker_class_str: str
    preload_app: bool
    reuse_port: bool
    timeout: int
    proxy_protocol: str


def check_server(config: Config) -> None:
    """Raises SettingsError when gunicorn was told to serve in a way that loses requests."""
    if not issubclass(config.worker_class, RecyclingWorker):
        raise SettingsError(
            f"-k {config.worker_class_str}: this worker class cannot serve an OCR engine: gevent and asgi run native "
            "calls one after the other in the loop that sends the heartbeat, sync reads one request at a time, and "
            "gthread is stopped before its successor is ready.",
            "Leave -k out; the service's own worker class is set.",
        )
    if not config.timeout:
        raise SettingsError("--timeout 0 leaves workers that hang alone for ever.", "Leave the flag out.")
    for name, reason in _REFUSED_FLAGS.items():
        if getattr(config, name):
            raise SettingsError(f"{reason}.", "Leave the flag out.")
    for name, (value, flag) in _ONLY_VALUES.items():
        if getattr(config, name) != value:
            told = f"{flag} {getattr(config, name)}: the event loop reads plain HTTP/1.1 only."
            raise SettingsError(told, "Leave the flag out.")
    if config.proxy_protocol not in _PROXY_PROTOCOLS:
        told = f"--proxy-protocol {config.proxy_protocol}: only version 1 is read."
        raise SettingsError(told, "Use --proxy-protocol v1, and have the proxy send that.")
