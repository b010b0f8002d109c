"""gunicorn's settings, made from ours. Its own flags are read later, and win."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ocrsvc.registry import adapters
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

# Clients reuse idle connections for up to a minute; a server that closes earlier races with their next request. A
# worker that stops waits less, see event_loop.STOP_LINGER_S.
_KEEPALIVE_S: Final = 75
# The heartbeat of a worker's main loop, not a limit for requests: those have their deadline.
_TIMEOUT_S: Final = 30
# What a worker may need beyond the longest deadline to send its last answers.
_LAST_ANSWERS_S: Final = 5
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a mount point; gunicorn makes a file for each worker, which is closed at once


def configuration(settings: Settings, plan: ThreadPlan) -> Mapping[str, object]:
    """gunicorn's settings, by its own names."""
    return {
        "bind": addresses(settings),
        "workers": plan.workers,
        "threads": plan.threads,
        "worker_class": "ocrsvc.worker.gunicorn_worker.RecyclingWorker",
        "logger_class": "ocrsvc.worker.logger.LastingLogger",
        "worker_connections": max(1000, 2 * plan.threads),
        "backlog": 2048,
        "keepalive": _KEEPALIVE_S,
        "timeout": _TIMEOUT_S,
        "graceful_timeout": math.ceil(settings.deadline_s) + _LAST_ANSWERS_S,
        "max_requests": settings.max_requests,
        "max_requests_jitter": settings.max_requests_jitter,
        "loglevel": settings.log_level,
        "pidfile": None if settings.pidfile is None else str(settings.pidfile),
        "worker_tmp_dir": str(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK) else None,
        # Its thread would run in the arbiter, and its socket is one per user, not one per service.
        "control_socket_disable": True,
    }


def addresses(settings: Settings) -> list[str]:
    """Where gunicorn listens: `bind`, and the usual ports that are asked for at the same host; each once."""
    host = settings.bind.rpartition(":")[0]
    usual = (f"{host}:{adapters()[name].port}" for name in settings.usual_ports)
    return list(dict.fromkeys((settings.bind, *usual)))
