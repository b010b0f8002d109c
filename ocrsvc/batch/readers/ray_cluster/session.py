"""The connection to a Ray cluster: quiet, without telemetry, with Ray's own errors put into words."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

from ocrsvc.batch.readers.ray_cluster.cluster_request import ADDRESS_PREFIX
from ocrsvc.errors import BadOption, ClusterUnavailable

_ENVIRONMENT: Final = {
    # Ray reports its use to its makers unless it is told not to.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A line on every worker for each that has no GPU.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}
_CONNECT_S: Final = 10.0
_FAILURES: Final = (ConnectionError, TimeoutError, RuntimeError, ValueError, ImportError, OSError)


def connect(on: str) -> Any:
    """The module `ray`, connected.

    Args:
        on: "ray" is the cluster that this machine belongs to, or that RAY_ADDRESS names; "ray://HOST:PORT" is reached
            through Ray Client.

    Raises:
        BadOption: Ray is not installed.
        ClusterUnavailable: There is no cluster, or it is of another version.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise BadOption("--on ray needs Ray, which is not installed.", "pip install 'ocrsvc[ray]'") from error
    address = on if on.startswith(ADDRESS_PREFIX) else "auto"
    try:
        check_listens(own_address() if address == "auto" else address)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, namespace="ocrsvc", log_to_driver=False, logging_level=logging.ERROR)
    except _FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ClusterUnavailable(
            f"{_named(on)} cannot be used: {' '.join(line.strip() for line in lines)[:600]}",
            "Start one (`ray start --head`), or name it: --on ray://HOST:10001, or RAY_ADDRESS=HOST:6379.",
        ) from error
    # Ray prints the last lines of the logs of a node that died, whatever was asked above.
    if (worker := sys.modules.get("ray._private.worker")) is not None:
        vars(worker)["_worker_logs_enabled"] = False
    return ray


def own_address() -> str:
    """Where Ray looks for the cluster of this machine; "" where it finds out by itself.

    Its file is not removed when a cluster is killed.
    """
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    noted = Path(folder, "ray", "ray_current_cluster")
    return os.environ.get("RAY_ADDRESS") or (noted.read_text("utf-8").strip() if noted.exists() else "")


def check_listens(address: str) -> None:
    """Raises ConnectionError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix(ADDRESS_PREFIX).rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error.strerror or error}).") from error


def _named(on: str) -> str:
    return f"The Ray cluster at {on}" if on != "ray" else "The Ray cluster of this machine"
