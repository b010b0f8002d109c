"""Reads the limits that Linux's control groups (v1 and v2) set for this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_limits(root: Path, controller: str, v2_file: str, *v1_files: str) -> Iterator[list[str]]:
    """The words in the files of a limit, of this process's cgroup and of those around it, innermost first.

    Args:
        root: Folder that holds proc/self/cgroup and sys/fs/cgroup.
        controller: What rules the limit in v1, "cpu" or "memory".
        v2_file, v1_files: Where the limit stands.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        # In a container the path may be the host's and only the mount's own root exists, so every parent is tried.
        inner = PurePosixPath(path.lstrip("/"))
        for part in (inner, *inner.parents):
            files = v1_files if controllers else (v2_file,)
            yield " ".join(read_text(mount / part / file) for file in files).split()


def read_text(file: Path) -> str:
    """The file's text; empty when there is none."""
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
