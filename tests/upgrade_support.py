"""Helpers for upgrade tests: copies of the package that report their version, and services that run them."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests
from support import ROOT, Server, clean_environment

# The file and text to patch so that a copy reports its version at /healthz.
_HEALTH = ("ocrsvc/api/operators.py", '"status": "ok"')
_VERSION = ("ocrsvc/__init__.py", '__version__ = "')
_ANSWER_S = 60.0
_STOP_S = 60.0
# Socket activation: the socket is descriptor 3, and LISTEN_PID is the process id.
_AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "ocrsvc", "serve"])
"""
Changes = Mapping[str, tuple[str, str]]


def write_package(site: Path, version: str, changes: Changes | None = None) -> None:
    """Copy the package without its models, set its version, and apply `changes`: file name to (old, new) text."""
    ignored = shutil.ignore_patterns("__pycache__", "*.onnx")
    shutil.copytree(ROOT / "ocrsvc", site / "ocrsvc", ignore=ignored)
    (health, ok), (init, before) = _HEALTH, _VERSION
    marks = {health: (ok, f'"status": "{version}"'), init: (before, f'{before}{version}"  # ')}
    for name, (old, new) in {**marks, **(changes or {})}.items():
        text = (site / name).read_text(encoding="utf-8")
        assert old in text, f"{name} no longer has {old}"
        (site / name).write_text(text.replace(old, new), encoding="utf-8")


def replace_package(site: Path, version: str, changes: Changes | None = None) -> None:
    """Delete the old files, then write the new ones, as an installer does."""
    shutil.rmtree(site / "ocrsvc")
    write_package(site, version, changes)


def version_of(url: str) -> str:
    return str(requests.get(f"{url}/healthz", timeout=_ANSWER_S).json()["status"])


@contextmanager
def serving(site: Path, env: Mapping[str, str], port: int = 0) -> Iterator[Server]:
    own = {"OCRSVC_ENGINE": "fake", **env, "OCRSVC_BIND": f"127.0.0.1:{port}", "PYTHONPATH": str(site)}
    server = Server(("ocrsvc", "serve"), own, site)
    try:
        server.wait_for("READY in", count=int(env["OCRSVC_WORKERS"]))
        yield server
    finally:
        server.kill()


class HeldSocket:
    """A listening socket passed to one service after another, as systemd does."""

    def __init__(self, site: Path, env: Mapping[str, str]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        bind = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{bind}"
        own = {"OCRSVC_ENGINE": "fake", **env, "OCRSVC_BIND": bind, "PYTHONPATH": str(site)}
        self._environment, self._site = clean_environment(own), site
        self._services: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start a service on the socket; does not wait until it is ready."""
        number = self._listener.fileno()
        service = subprocess.Popen(
            [sys.executable, "-c", _AS_SYSTEMD, str(number)],
            env=self._environment,
            cwd=self._site,
            pass_fds=[number],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._services.append(service)
        return service

    def stop(self, service: subprocess.Popen[bytes]) -> int:
        """Stop a service gracefully; returns its exit code."""
        service.terminate()
        return service.wait(_STOP_S)

    def close(self) -> None:
        """Close the socket and kill services left by a failed test."""
        self._listener.close()
        for service in self._services:
            service.kill()
            service.wait(_STOP_S)
