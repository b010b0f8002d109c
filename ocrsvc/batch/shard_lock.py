"""One process works on a shard: a lock in the work folder, and an owner's file in the destination."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.batch.destination import Destination, FolderDestination
from ocrsvc.batch.work_file import is_local_disk
from ocrsvc.errors import OperatorError

_OWNERS: Final = "_ocrsvc/owners"
_WORK: Final = "_ocrsvc/work"


class ShardInUse(OperatorError):
    """Another process works on this shard."""

    code = "shard_in_use"
    title = "Another process works on this shard"
    exit_code = 75


def work_folder(destination: Destination, asked: Path | None) -> Path:
    """The folder of this machine for what is not in the output yet, which is made.

    It lies in the destination if that is on a local disk, and among the temporary files otherwise.
    """
    folder = asked
    if folder is None and isinstance(destination, FolderDestination):
        destination.folder.mkdir(parents=True, exist_ok=True)
        if is_local_disk(destination.folder):
            folder = destination.folder / _WORK
    if folder is None:
        address = destination.address if "://" in destination.address else os.path.realpath(destination.address)
        name = f"ocrsvc-batch-{os.getuid()}/{sha256(address.encode()).hexdigest()[:16]}"
        folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def shard_lock(destination: Destination, folder: Path, shard: str, *, take_over: bool) -> Iterator[None]:
    """Work on a shard, such as "0-of-8", alone while the block runs.

    Raises:
        ShardInUse: Another process does; or one did on another machine, and nothing shows that it has ended.
    """
    with (folder / f"{shard}.lock").open("w") as file:
        try:
            # Ends with the process, however that ends; processes that it starts do not inherit it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(destination, "on this machine") from error
        name = f"{_OWNERS}/{shard}.json"
        _claim(destination, name, _work_id(folder), take_over=take_over)
        try:
            yield
        finally:
            with suppress(OSError):
                destination.delete(name)


def _claim(destination: Destination, name: str, work: str, *, take_over: bool) -> None:
    own = _this_process() | {"work": work}
    data = orjson.dumps(own)
    if destination.create(name, data):
        return
    try:
        other = orjson.loads(destination.read(name))
        may_live = other["work"] != work and not _is_gone(other, own)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        other, may_live = {}, False
    if may_live and not take_over:
        raise _in_use(destination, f"on {other.get('host')}, or was killed there")
    with destination.writing(name) as file:
        file.write(data)


def _in_use(destination: Destination, where: str) -> ShardInUse:
    return ShardInUse(
        f"Another process works on the run in {destination.address} {where}.",
        "Let it end, or give each machine a shard of its own from the beginning: --shard I/N. If it is certain that it "
        "has ended, add --take-over.",
    )


def _work_id(folder: Path) -> str:
    path = folder / "id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _text_of("/proc/sys/kernel/random/boot_id"),
        "pids": os.readlink("/proc/self/ns/pid") if Path("/proc/self/ns/pid").is_symlink() else "",  # noqa: PTH115  not a path
        "pid": os.getpid(),
        "born": _born(os.getpid()),
    }


def _is_gone(other: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether a process has certainly ended: it was of this boot of this machine, where it would be seen."""
    seen = all(here[name] and other[name] == here[name] for name in ("host", "boot", "pids"))
    return seen and _born(other["pid"]) != other["born"]


def _text_of(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text("ascii").strip()
    return ""


def _born(pid: int) -> str:
    """When a process was started (proc(5), stat, field 22); "" if there is none, or one that waits to be reaped."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if state in ("Z", "X") else fields[18]
    return ""
