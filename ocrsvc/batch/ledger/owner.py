"""Who writes a log of the ledger: a process on a host, which others can tell to be gone where they share the host."""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that works on a run.

    Attributes:
        name: Of its logs; names sort by when they began.
        host, boot: The host, and which of its boots.
        pid, born: The process, and when it was started, in clock ticks since the boot.
        began: Unix time.
    """

    name: str
    host: str
    boot: str
    pid: int
    born: str
    began: float

    @classmethod
    def this_process(cls) -> Self:
        """The owner that this process is."""
        began, host = time.time(), socket.gethostname()
        label = re.sub("[^a-zA-Z0-9-]", "-", host)[:40]
        name = f"{int(began * 1000):012x}-{label}-{os.getpid()}"
        return cls(name, host, _boot(), os.getpid(), _born(os.getpid()), began)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The owner that `to_values` told."""
        return cls(**values)

    def to_values(self) -> dict[str, Any]:
        """For a log's first frame."""
        return asdict(self)

    def is_gone(self, here: Owner) -> bool:
        """Whether the process has certainly ended, as seen by another owner; False where that cannot be seen."""
        if self.host != here.host or not self.boot:
            return False
        return self.boot != here.boot or _born(self.pid) != self.born


def _boot() -> str:
    """The id of this boot of this machine; "" where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When a process was started (proc(5), stat, field 22); "" if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
