"""Landlock: this thread and all that it starts open nothing but some files for reading, and reach no other process.

Linux 5.13 and later; what each version of it adds is used where the kernel has it.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from ocrsvc.system.sandbox.libc import NO_NEW_PRIVILEGES, prctl, system_call

# The same numbers on every architecture.
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_READ_FILE: Final = 1 << 2
_READ_DIRECTORY: Final = 1 << 3
# The rights over files that each version knows: executing, writing, making, removing; then linking elsewhere,
# truncating and asking devices.
_FILE_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
# Binding and connecting TCP.
_NETWORK_RIGHTS: Final = {4: 0b11}
# Abstract Unix sockets, and signals.
_SCOPES: Final = {6: 0b11}
_ATTRIBUTE_BYTES: Final = {1: 8, 4: 16, 6: 24}


class _Attribute(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def read_version() -> int:
    """The version of Landlock's interface that this kernel has. Raises OSError where it has none."""
    return system_call(_CREATE_RULESET, 0, 0, _ASK_VERSION)


def confine_to(readable: Iterable[str]) -> int:
    """Open from here on nothing but these files and folders, for reading; what is open stays so.

    Paths that cannot be opened are left out. Returns the version of Landlock; raises OSError where the kernel has none.
    """
    version = read_version()
    attribute = _Attribute(_of(_FILE_RIGHTS, version), _of(_NETWORK_RIGHTS, version), _of(_SCOPES, version))
    ruleset = system_call(_CREATE_RULESET, ctypes.addressof(attribute), _of(_ATTRIBUTE_BYTES, version), 0)
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        prctl(NO_NEW_PRIVILEGES, 1)
        system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _of(table: dict[int, int], version: int) -> int:
    """The entry of the newest version that is not newer than this one."""
    return table.get(max((known for known in table if known <= version), default=0), 0)


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(parent).st_mode)
        rule = _PathBeneath(_READ_FILE | _READ_DIRECTORY if is_folder else _READ_FILE, parent)
        system_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(parent)
