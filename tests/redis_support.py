"""Starts a real Redis for tests."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import wait_until


@contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Start Redis on a private Unix socket and yield its URL; skips the test if Redis is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    wire = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(wire), "--save", "", "--appendonly", "no"]
    with subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: _is_listening(wire), "redis-server listens")
            yield f"unix://{wire}"
        finally:
            server.terminate()


def _is_listening(wire: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(wire)) == 0
