"""`ocrsvc serve` and `ocrsvc recycle`: run gunicorn in this process; replace all workers of a running service."""

import difflib
import os
import re
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
from gunicorn.config import Config

import ocrsvc
from ocrsvc.access.audit_log import audit_log_of, local_user
from ocrsvc.cli.options import FILE, Number, check_at_most_one, command, option
from ocrsvc.errors import OperatorError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.load import read_settings

_APPLICATION: Final = "ocrsvc.worker.hooks:build_app()"
_CHECK_S: Final = 0.1
_TIMED_OUT: Final = 75
_REMEDY: Final = "Name the process id of gunicorn's main process, the parent of the workers."


@command(
    "ocrsvc serve --port 8001",
    "ocrsvc serve --bind 0.0.0.0:80 --workers 4",
    "OCRSVC_WORKERS=2 ocrsvc serve",
    # All other options are gunicorn's; -h is left out because click would find it in -bhost:80.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@option("--port", type=Number(int, 1, 65_535), metavar="PORT", help="Listen at this port instead of OCRSVC_BIND's.")
@option("--bind", multiple=True, metavar="ADDRESS", help="Listen at HOST:PORT or unix:PATH; repeatable.")
@option("--workers", metavar="N", help="Worker processes, instead of OCRSVC_WORKERS.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...", help="Other flags, of gunicorn.")
def serve(port: int | None, flags: Sequence[str], **known: str | Sequence[str] | None) -> None:
    """Serve over HTTP until a signal comes, by default at http://127.0.0.1:8000.

    Settings are environment variables; `ocrsvc settings` lists them.
    """
    if "-h" in flags:
        print(click.get_current_context().get_help())
        return
    check_at_most_one(port=port, bind=known["bind"])
    for name, values in known.items():
        flags = [*(f"--{name}={value}" for value in ([values] if isinstance(values, str) else values or ())), *flags]
    _check_flags(flags)
    if port:
        host = read_settings().bind.rpartition(":")[0]
        os.environ[variable_of("bind")] = f"{'127.0.0.1' if host == 'unix' else host}:{port}"
    sys.stdout.flush()
    line = command_line(flags)
    # exec keeps the process id, so gunicorn gets the signals, and its exit code is this command's.
    os.execv(line[0], line)  # noqa: S606  no shell needed


def _check_flags(flags: Sequence[str]) -> None:
    """Raises UsageError for an argument that gunicorn does not know, or would misread as an application or option."""
    config = Config("%(prog)s [OPTIONS]", prog="ocrsvc serve")
    parser = config.parser()
    parser.allow_abbrev = False
    given, unknown = parser.parse_known_args(flags)
    for word in (*unknown, *given.args):
        if word == _APPLICATION:
            continue
        if re.fullmatch(r"(?!-)(?:.*:)?\d+", word):
            near = [f"{'port' if word.isdecimal() else 'bind'} {word}"]
        else:
            names = [name.lstrip("-") for setting in config.settings.values() for name in setting.cli or ()]
            near = difflib.get_close_matches(word.strip("-").partition("=")[0], ["port", *names], n=1)
        hint = f" Did you mean --{near[0]}?" if near else ""
        raise click.UsageError(f"{word!r} is not an option of ocrsvc serve.{hint}", click.get_current_context())


def command_line(flags: Sequence[str]) -> list[str]:
    """gunicorn's command line."""
    configuration = Path(ocrsvc.__file__).parent / "worker" / "gunicorn_conf.py"
    return [sys.executable, "-m", "gunicorn", "-c", str(configuration), *flags, _APPLICATION]


class Process(NamedTuple):
    """A process id with its start time in clock ticks after boot, because ids are reused."""

    pid: int
    started: int


@command("ocrsvc recycle", "ocrsvc recycle --pid 4711 --timeout 120")
@option("--pid", type=int, metavar="PID", help="Process id of the arbiter, gunicorn's main process.")
@option("--pidfile", type=FILE, help="The arbiter's pid file; by default OCRSVC_PIDFILE.")
@option("--timeout", type=float, default=600.0, metavar="SECONDS", help="How long to wait (600).")
def recycle(pid: int | None, pidfile: Path | None, timeout: float) -> int:
    """Replace all workers of a running service, starting each successor first, and wait until this is done.

    The exit code is 0 if all were replaced and 75 after the timeout.
    """
    check_at_most_one(pid=pid is not None, pidfile=pidfile)
    arbiter = find_arbiter(pid if pid is not None else _read_pidfile(pidfile or read_settings().pidfile))
    old = workers_of(arbiter.pid)
    if not old:
        raise OperatorError(f"Process {arbiter.pid} has no workers.", "Is it this service? See its log.")
    log = audit_log_of(read_settings())
    log.check()
    for worker in old:
        _request_replacement(worker)
    log.write(local_user(), "workers.recycle", time.time(), arbiter=arbiter.pid, workers=len(old))
    print(f"asked {len(old)} workers of {arbiter.pid} for successors: {_pids(old)}", flush=True)
    left = _wait(arbiter, old, time.monotonic() + timeout)
    if left:
        print(f"replaced {len(old) - len(left)} of {len(old)} workers in {timeout:g} s; left: {_pids(left)}")
        print("They keep serving until their successors are ready; see the service's log.")
        return _TIMED_OUT
    print(f"replaced all {len(old)} workers")
    return 0


def _read_pidfile(file: Path | None) -> int:
    if file is None:
        remedy = f"Give --pid or --pidfile, or set {variable_of('pidfile')} for the service and this command."
        raise OperatorError("No service is named.", remedy)
    try:
        return int(file.read_text(encoding="ascii"))
    except OSError as error:
        raise OperatorError(f"{file} cannot be read: {error.strerror}.", "Is the service running?") from error
    except ValueError as error:
        raise OperatorError(f"The pid file {file} does not hold a process id.", "Give --pid instead.") from error


def find_arbiter(pid: int) -> Process:
    """The arbiter with this process id. Raises OperatorError if the process does not exist or is not an arbiter."""
    if (arbiter := _process(pid)) is None:
        raise OperatorError(f"Process {pid} does not exist.", f"Is the service running? {_REMEDY}")
    command_line = _read(pid, "cmdline").replace("\0", " ").strip()
    if "gunicorn" not in command_line and "ocrsvc" not in command_line:
        raise OperatorError(f"Process {pid} is not gunicorn: {command_line[:100]!r}.", _REMEDY)
    if _caught(pid) != {signal.SIGHUP, signal.SIGUSR2}:
        raise OperatorError(f"Process {pid} is not the arbiter of this service: {command_line[:100]!r}.", _REMEDY)
    return arbiter


def workers_of(pid: int) -> frozenset[Process]:
    """The arbiter's workers: children that catch only SIGUSR2; a child that still catches SIGHUP was just forked."""
    children = map(_process, map(int, _read(pid, f"task/{pid}/children").split()))
    return frozenset(child for child in children if child and _caught(child.pid) == {signal.SIGUSR2})


def _request_replacement(worker: Process) -> None:
    try:
        os.kill(worker.pid, signal.SIGUSR2)
    except ProcessLookupError:
        return
    except PermissionError as error:
        what = f"The worker {worker.pid} belongs to another user."
        raise OperatorError(what, "Run this command as the service's user or as root.") from error


def _wait(arbiter: Process, old: Collection[Process], end_s: float) -> frozenset[Process]:
    """Wait until `old` workers are replaced; return those left at `end_s`. Raises OperatorError if the service ends."""
    left = frozenset(old)
    while left and time.monotonic() < end_s:
        time.sleep(_CHECK_S)
        if _process(arbiter.pid) != arbiter:
            raise OperatorError(f"The service {arbiter.pid} has ended.", "See its log.")
        gone = {worker for worker in left if _process(worker.pid) != worker}
        for worker in gone:
            print(f"replaced worker {worker.pid}", flush=True)
        left -= gone
    return left


def _process(pid: int) -> Process | None:
    """The process with this id; None if it has ended or is a zombie."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return Process(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None


def _caught(pid: int) -> set[signal.Signals]:
    """Which of SIGHUP and SIGUSR2 the process catches."""
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(pid, "status"), re.MULTILINE)
    bits = int(match[1], 16) if match else 0
    return {number for number in (signal.SIGHUP, signal.SIGUSR2) if bits >> (number - 1) & 1}


def _read(pid: int, name: str) -> str:
    """A file of /proc/PID; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _pids(workers: Collection[Process]) -> str:
    return ", ".join(str(pid) for pid in sorted(worker.pid for worker in workers))
