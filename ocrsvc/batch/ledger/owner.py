"""Who writes a log of the ledger: a process on a host, which others can tell to be gone where they share the host."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

_DEAD: Final = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that works on a run.

    Attributes:
        name: Of its logs; names sort by when they began.
        host, boot: The host, and which of its boots.
        pids: The PID namespace: processes in two containers may have the same number.
        pid, born: The process, and when it was started, in clock ticks since the boot.
        began: Unix time.
    """

    name: str
    host: str
    boot: str
    pids: str
    pid: int
    born: str
    began: float

    @classmethod
    def this_process(cls) -> Self:
        """The owner that this process is."""
        began, host = time.time(), socket.gethostname()
        label = re.sub("[^a-zA-Z0-9-]", "-", host)[:40]
        name = f"{int(began * 1000):012x}-{label}-{os.getpid()}-{secrets.token_hex(2)}"
        return cls(name, host, _boot(), _pids(), os.getpid(), _born(os.getpid()), began)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The owner that `to_values` told."""
        return cls(**values)

    def to_values(self) -> dict[str, Any]:
        """For a log's first frame."""
        return asdict(self)

    def is_gone(self, here: Owner) -> bool:
        """Whether the process has certainly ended, as seen by another owner; False where that cannot be seen."""
        # Of two machines with one name, each has boots of its own.
        is_seen = bool(self.boot and self.pids) and (self.host, self.boot, self.pids) == (
            here.host,
            here.boot,
            here.pids,
        )
        return is_seen and _born(self.pid) != self.born


def _boot() -> str:
    """The id of this boot of this machine; "" where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _pids() -> str:
    """The PID namespace of this process; "" where the system does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When a process was started (proc(5), stat, field 22); "" if there is none, or one that waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in _DEAD else fields[18]
