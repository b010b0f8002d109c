"""One process works on a shard: a lock on each machine, and an owner's file in the destination."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from ocrsvc.batch.destination import Destination, ObjectDestination
from ocrsvc.batch.work_file import is_local_disk
from ocrsvc.errors import OperatorError

_WORK: Final = "_ocrsvc/work"


class ShardInUse(OperatorError):
    """Another process works on this shard."""

    code = "shard_in_use"
    title = "Another process works on this shard"
    exit_code = 75


def work_folder(destination: Destination) -> Path:
    """The folder of this machine for what is not in the output yet, which is made.

    It lies in the destination if that is on a local disk, and among the temporary files otherwise.
    """
    folder = None
    if not isinstance(destination, ObjectDestination):
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
def shard_lock(destination: Destination, shard: str, *, take_over: bool) -> Iterator[None]:
    """Work on a shard, such as "0-of-8", alone while the block runs.

    Raises:
        ShardInUse: Another process does; or one did on another machine, and nothing shows that it has ended.
    """
    name, host = f"_ocrsvc/owners/{shard}", socket.gethostname()
    # Not in the folder of --work: commands that name different ones meet here.
    with (work_folder(destination) / f"{shard}.lock").open("w") as file:
        try:
            # Ends with the process, however that ends; processes that it starts do not inherit it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(destination, "on this machine") from error
        if not destination.create(name, host.encode()):
            with suppress(FileNotFoundError):
                owner = destination.read(name).decode(errors="replace")
                # One on this machine has ended, since its lock is free.
                if owner != host and not take_over:
                    raise _in_use(destination, f"on {owner}, or was killed there")
            with destination.writing(name) as output:
                output.write(host.encode())
        try:
            yield
        finally:
            with suppress(OSError):
                destination.delete(name)


def _in_use(destination: Destination, where: str) -> ShardInUse:
    return ShardInUse(
        f"Another process works on the run in {destination.address} {where}.",
        "Let it end, or give each machine a shard of its own from the beginning: --shard I/N. If it is certain that it "
        "has ended, add --take-over.",
    )
