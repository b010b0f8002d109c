"""What a service wrote to files, from a strace log, and which files its processes have open or mapped."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.processes import family_of

_CALLS: Final = "write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range,mmap"
# A call, its file descriptor, and the descriptor's path in hexadecimal, as strace prints it with -y and -xx.
_WRITTEN: Final = re.compile(rb"^\d+ +(write|pwrite64|writev|pwritev2?)\(\d+<((?:\\x..)+)>")
_COPIED: Final = re.compile(rb"^\d+ +(?:sendfile\(|copy_file_range\(\d+<[^>]*>[^,]*, [^,]+, )\d+<((?:\\x..)+)>")
_MAPPED: Final = re.compile(rb"^\d+ +mmap\([^,]+, [^,]+, PROT_[A-Z_|]*WRITE[^,]*, MAP_SHARED[^,]*, \d+<((?:\\x..)+)>")
_TEXT: Final = re.compile(rb'"((?:\\x..)*)"')
_NO_FILES: Final = ("/memfd:", "/dev/", "/proc/")
_REGULAR_MAPPING: Final = re.compile(r"^\S+ (\S+) \S+ \S+ (\d+) +(/.+)$")


def strace_command(log: Path) -> list[str]:
    """Command prefix that logs a command's writes and keeps its process id. Exits if strace is missing."""
    strace = shutil.which("strace")
    if strace is None:
        sys.exit("strace is not installed: apt-get install strace")
    options = ["-D", "-f", "-qq", "--seccomp-bpf", "-y", "-xx", "-s", str(1 << 28), "-e", f"trace={_CALLS}"]
    return [strace, *options, "-e", "signal=none", "-o", os.fspath(log)]


def read_writes(log: Path) -> dict[str, bytearray]:
    """Bytes written to regular files by path, in order."""
    written: dict[str, bytearray] = {}
    with log.open("rb") as lines:
        for line in lines:
            found = _WRITTEN.match(line)
            if found is not None and _is_file(path := _decoded(found[2]).decode("utf-8", "replace")):
                data = b"".join(_decoded(text[1]) for text in _TEXT.finditer(line, found.end()))
                written.setdefault(path, bytearray()).extend(data)
    return written


def read_unseen(log: Path) -> Iterator[str]:
    """Files written without the data in the log: copied by the kernel, or mapped."""
    with log.open("rb") as lines:
        for line in lines:
            found = _COPIED.match(line) or _MAPPED.match(line)
            if found is not None and _is_file(path := _decoded(found[1]).decode("utf-8", "replace")):
                yield path


def files_in_use(pid: int) -> Iterator[str]:
    """Regular files that the process and its descendants have mapped, or open for writing."""
    for one in family_of(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/maps").read_text("utf-8", "replace").splitlines():
                found = _REGULAR_MAPPING.match(line)
                if found is not None and found[2] != "0" and _is_file(found[3]):
                    yield found[3].removesuffix(" (deleted)")
        yield from _open_for_writing(one)


def _open_for_writing(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                path = os.fspath(entry.readlink())
                flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text())
                is_written = flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
                if is_written and path.startswith("/") and _is_file(path):
                    yield path.removesuffix(" (deleted)")


def _is_file(path: str) -> bool:
    return path.startswith("/") and not path.startswith(_NO_FILES)


def _decoded(text: bytes) -> bytes:
    """Decode strace's hexadecimal digits."""
    return bytes.fromhex(text.decode("ascii").replace("\\x", ""))
