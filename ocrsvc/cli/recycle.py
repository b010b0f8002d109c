"""`ocrsvc recycle`: replaces the workers of a running service, successor first, and waits until the new ones serve."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from ocrsvc.access.audit_log import audit_log_of, local_user
from ocrsvc.cli.options import FILE, check_at_most_one, command, option
from ocrsvc.errors import OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.load import read_settings

_CHECK_S: Final = 0.1
_TIMED_OUT: Final = 75
_REMEDY: Final = "Name the process id of gunicorn's main process, the parent of the workers."


class Process(NamedTuple):
    """One process, and when it started (clock ticks after the boot): ids are used again, with another start."""

    pid: int
    started: int


@command("ocrsvc recycle", "ocrsvc recycle --pid 4711 --timeout 120")
@option("--pid", type=int, metavar="PID", help="Process id of the arbiter, gunicorn's main process.")
@option("--pidfile", type=FILE, help="Its pid file; by default the one that OCRSVC_PIDFILE names.")
@option("--timeout", type=float, default=600.0, metavar="SECONDS", help="How long to wait (600).")
def recycle(pid: int | None, pidfile: Path | None, timeout: float) -> int:
    """Replace every worker of a running service, successor first, and wait until the new ones serve.

    It ends with 0 when all of them are replaced, and 75 when some are not in time.
    """
    check_at_most_one(pid=pid is not None, pidfile=pidfile)
    arbiter = find_arbiter(pid if pid is not None else _read_pidfile(pidfile))
    old = workers_of(arbiter.pid)
    if not old:
        what = f"Process {arbiter.pid} has no worker that could be asked."
        raise OperatorError(what, "Is it this service? Its log says how it stands.")
    log = audit_log_of(read_settings())
    log.check()
    for worker in old:
        _ask(worker)
    log.write(local_user(), "workers.recycle", time.time(), arbiter=arbiter.pid, workers=len(old))
    print(f"asked {len(old)} workers of {arbiter.pid} for successors: {_pids(old)}", flush=True)
    left = _wait(arbiter, old, time.monotonic() + timeout)
    if left:
        print(f"{len(old) - len(left)} of {len(old)} workers are replaced after {timeout:g} s; left: {_pids(left)}.")
        print("They serve on until their successors are ready; the service's log says what these wait for.")
        return _TIMED_OUT
    print(f"all {len(old)} workers are replaced")
    return 0


def _read_pidfile(named: Path | None) -> int:
    file = named or read_settings().pidfile
    if file is None:
        remedy = f"Give --pid or --pidfile, or set {variable_of('pidfile')} for the service and for this command."
        raise OperatorError("Nothing says which service is meant.", remedy)
    try:
        return int(file.read_text(encoding="ascii"))
    except OSError as error:
        what = f"The pid file {file} cannot be read: {error.strerror}."
        raise OperatorError(what, "Is the service running?") from error
    except ValueError as error:
        raise OperatorError(f"The pid file {file} does not hold a process id.", "Give --pid instead.") from error


def find_arbiter(pid: int) -> Process:
    """The arbiter with this process id. Raises OperatorError when there is none, or it is something else."""
    if (arbiter := _process(pid)) is None:
        raise OperatorError(f"There is no process {pid}.", f"Is the service running? {_REMEDY}")
    called = _read(pid, "cmdline").replace("\0", " ").strip()
    if "gunicorn" not in called and "ocrsvc" not in called:
        raise OperatorError(f"Process {pid} is no gunicorn: {called[:100]!r}.", _REMEDY)
    if not {signal.SIGHUP, signal.SIGUSR2} <= _caught(pid):
        raise OperatorError(f"Process {pid} is not the arbiter of this service: {called[:100]!r}.", _REMEDY)
    return arbiter


def workers_of(pid: int) -> frozenset[Process]:
    """The arbiter's workers that may be asked: those that catch the signal, which would end any other process.

    A child that catches SIGHUP has the arbiter's handlers still: it was forked just now, and is fresh anyway.
    """
    children = map(_process, map(int, _read(pid, f"task/{pid}/children").split()))
    both = {signal.SIGHUP, signal.SIGUSR2}
    return frozenset(child for child in children if child and _caught(child.pid) & both == {signal.SIGUSR2})


def _ask(worker: Process) -> None:
    try:
        os.kill(worker.pid, signal.SIGUSR2)
    except ProcessLookupError:
        return
    except PermissionError as error:
        what = f"The worker {worker.pid} belongs to another user."
        raise OperatorError(what, "Run this as the service's own user, or as root.") from error


def _wait(arbiter: Process, old: Collection[Process], end_s: float) -> frozenset[Process]:
    """Those that are left when the time is over or none is. Raises OperatorError where the service has ended."""
    left = frozenset(old)
    while left and time.monotonic() < end_s:
        time.sleep(_CHECK_S)
        if _process(arbiter.pid) != arbiter:
            raise OperatorError(f"The service {arbiter.pid} has ended meanwhile.", "Its log says why.")
        gone = {worker for worker in left if _process(worker.pid) != worker}
        for worker in gone:
            print(f"worker {worker.pid} is replaced", flush=True)
        left -= gone
    return left


def _process(pid: int) -> Process | None:
    """The process with this id, unless it has ended (a zombie has)."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return Process(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None


def _caught(pid: int) -> set[signal.Signals]:
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(pid, "status"), re.MULTILINE)
    bits = int(found[1], 16) if found else 0
    return {number for number in signal.Signals if bits >> (number - 1) & 1}


def _read(pid: int, name: str) -> str:
    """A file of /proc; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _pids(workers: Collection[Process]) -> str:
    return ", ".join(str(pid) for pid in sorted(worker.pid for worker in workers))
