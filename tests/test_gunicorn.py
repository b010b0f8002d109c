"""Digests of gunicorn's internal methods that our worker, arbiter and logger replace or call.

gunicorn.json has a digest of each method's source. After an upgrade read what has changed, adapt what depends on it,
run `make soak` and `make chaos`, and then:

    python tests/test_gunicorn.py > tests/gunicorn.json
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gunicorn.arbiter
import gunicorn.glogging
import gunicorn.sock
import gunicorn.workers.base
import gunicorn.workers.gthread
import gunicorn.workers.workertmp

KNOWN = Path(__file__).with_name("gunicorn.json")
THEIRS = (
    gunicorn.arbiter.Arbiter,
    gunicorn.glogging.Logger,
    gunicorn.sock.BaseSocket,
    gunicorn.workers.base.Worker,
    gunicorn.workers.gthread.PollableMethodQueue,
    gunicorn.workers.gthread.TConn,
    gunicorn.workers.gthread.ThreadWorker,
    gunicorn.workers.workertmp.WorkerTmp,
)
# Methods of parts of gunicorn that this service turns off.
UNUSED = ("dirty", "control", "http2", "h2", "syslog", "get_user", "atoms")


def digests() -> dict[str, str]:
    found = {}
    for theirs in THEIRS:
        for name, value in vars(theirs).items():
            function: Callable[..., Any] | None = getattr(value, "__func__", value)
            if inspect.isfunction(function) and not any(part in name.lower() for part in UNUSED):
                source = inspect.getsource(function)
                digest = hashlib.sha256(source.encode()).hexdigest()[:16]
                found[f"{theirs.__module__}.{theirs.__name__}.{name}"] = digest
    return dict(sorted(found.items()))


def test_installed_gunicorn_is_the_supported_version() -> None:
    now, before = digests(), json.loads(KNOWN.read_text())
    changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    assert changed == [], f"gunicorn {metadata.version('gunicorn')} has changed these: see the docstring of {__file__}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(digests(), indent=1) + "\n")
