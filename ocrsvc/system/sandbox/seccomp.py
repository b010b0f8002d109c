"""seccomp: this process makes no connection, starts no process, writes no file by name and touches no other process.

The filter names what is refused. One that names what is allowed would refuse more, and would break with new versions of
the C library, of Python and of what they load.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ocrsvc.system.sandbox.libc import NO_NEW_PRIVILEGES, prctl

# Name, number on x86_64, number on aarch64; -1 where there is none. Calls that are refused whatever their arguments.
_REFUSED: Final = """
socket 41 198, socketpair 53 199, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,

fork 57 -1, vfork 58 -1, execve 59 221, execveat 322 281, ptrace 101 117, process_vm_readv 310 270,
process_vm_writev 311 271, process_madvise 440 440, pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424,
tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, setns 308 268, unshare 272 97, kcmp 312 272,
setpriority 141 140, setrlimit 160 164, ioprio_set 251 30, migrate_pages 256 238, move_pages 279 239,

creat 85 -1, mkdir 83 -1, mkdirat 258 34, rmdir 84 -1, unlink 87 -1, unlinkat 263 35, rename 82 -1, renameat 264 38,
renameat2 316 276, link 86 -1, linkat 265 37, symlink 88 -1, symlinkat 266 36, mknod 133 -1, mknodat 259 33,
chmod 90 -1, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -1, fchown 93 55, lchown 94 -1, fchownat 260 54,
truncate 76 45, utime 132 -1, utimes 235 -1, futimesat 261 -1, utimensat 280 88, setxattr 188 5, lsetxattr 189 6,
fsetxattr 190 7, setxattrat 463 463, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16,
removexattrat 466 466, memfd_create 319 279, memfd_secret 447 447,

shmget 29 194, shmat 30 196, shmctl 31 195, msgget 68 186, semget 64 190, mq_open 240 180, mq_unlink 241 181,

chroot 161 51, pivot_root 155 41, mount 165 40, umount2 166 39, open_tree 428 428, move_mount 429 429, fsopen 430 430,
fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, swapon 167 224, swapoff 168 225,
reboot 169 142, sethostname 170 161, setdomainname 171 162, init_module 175 105, finit_module 313 273,
delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, settimeofday 164 170, clock_settime 227 112,
adjtimex 159 171, clock_adjtime 305 266,
bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425,
io_uring_enter 426 426, io_uring_register 427 427, keyctl 250 219, add_key 248 217, request_key 249 218,
open_by_handle_at 304 265, name_to_handle_at 303 264, fanotify_init 300 262, quotactl 179 60, quotactl_fd 443 443,
acct 163 89, syslog 103 116, personality 135 92, iopl 172 -1, ioperm 173 -1, vhangup 153 58, lookup_dcookie 212 18
"""
# Their arguments lie in memory, where no filter sees them; the C library then takes the older call.
_ABSENT: Final = "openat2 437 437, clone3 435 435"
# Only for this process itself: the first argument is its id, or, for the second line, 0 as well.
_OWN: Final = "kill 62 129, tgkill 234 131"
_OWN_OR_ZERO: Final = (
    "sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274"
)
# Only to ask: the third argument, where a new limit lies, is nowhere.
_LIMIT: Final = "prlimit64 302 261"
# Opened for reading, that is without these flags; they are in the second argument, or in the third.
_OPEN: Final = "open 2 -1"
_OPENAT: Final = "openat 257 56"
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# A new thread, and no new process.
_CLONE: Final = "clone 56 220"
_THREAD: Final = 0x10000

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
# Classic BPF: load a word of the call, compare, answer.
_LOAD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_JUMP_ANY_BIT: Final = 0x45
_ANSWER: Final = 0x06
_INSTRUCTION_BYTES: Final = 8
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_FAIL: Final = 0x00050000
_REFUSE: Final = _FAIL | errno.EPERM
# The second set of calls for 64-bit x86, with numbers of its own.
_X32: Final = 0x40000000


class _Architecture(NamedTuple):
    audit: int
    column: int


_ARCHITECTURES: Final = {"x86_64": _Architecture(0xC000003E, 1), "aarch64": _Architecture(0xC00000B7, 2)}

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_calls() -> None:
    """Hold this thread, and all that it starts, to the filter.

    Raises OSError where the kernel has no seccomp, or we know none of its calls on this architecture.
    """
    architecture = _ARCHITECTURES.get(os.uname().machine)
    if architecture is None or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"no filter is written for {os.uname().machine}")
    code = b"".join(struct.pack("=HBBI", *line) for line in _filter_for(architecture, os.getpid()))
    text = ctypes.create_string_buffer(code, len(code))
    prctl(NO_NEW_PRIVILEGES, 1)
    program = _Program(len(code) // _INSTRUCTION_BYTES, ctypes.addressof(text))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _filter_for(architecture: _Architecture, process: int) -> Iterator[_Instruction]:
    """The program: A jump says how many instructions to leave out where the answer is yes, and where it is no."""

    def numbers(calls: str) -> list[int]:
        found = [int(call.split()[architecture.column]) for call in calls.split(",")]
        return [number for number in found if number >= 0]

    yield (_LOAD, 0, 0, _ARCHITECTURE_AT)
    yield (_JUMP_EQUAL, 1, 0, architecture.audit)
    yield (_ANSWER, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    yield (_JUMP_AT_LEAST, 0, 1, _X32)
    yield (_ANSWER, 0, 0, _REFUSE)
    yield from _where(numbers(_REFUSED), [(_ANSWER, 0, 0, _REFUSE)])
    yield from _where(numbers(_ABSENT), [(_ANSWER, 0, 0, _FAIL | errno.ENOSYS)])
    yield from _where(numbers(_OWN), _if_equal(0, [process]))
    yield from _where(numbers(_OWN_OR_ZERO), _if_equal(0, [process, 0]))
    yield from _where(numbers(_LIMIT), _if_zero(2))
    yield from _where(numbers(_OPEN), _if_bits(1, _CHANGES, then=_REFUSE, otherwise=_ALLOW))
    yield from _where(numbers(_OPENAT), _if_bits(2, _CHANGES, then=_REFUSE, otherwise=_ALLOW))
    yield from _where(numbers(_CLONE), _if_bits(0, _THREAD, then=_ALLOW, otherwise=_REFUSE))
    yield (_ANSWER, 0, 0, _ALLOW)


def _where(numbers: Sequence[int], block: Sequence[_Instruction]) -> Iterator[_Instruction]:
    """A block that answers, for each call of these numbers."""
    for number in numbers:
        yield (_JUMP_EQUAL, 0, len(block), number)
        yield from block


def _if_equal(argument: int, values: Sequence[int]) -> list[_Instruction]:
    tests = [(_JUMP_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_load(argument), *tests, (_ANSWER, 0, 0, _REFUSE), (_ANSWER, 0, 0, _ALLOW)]


def _if_zero(argument: int) -> list[_Instruction]:
    words = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument + at) for at in (0, 4)]
    refuse, allow = (_ANSWER, 0, 0, _REFUSE), (_ANSWER, 0, 0, _ALLOW)
    return [words[0], (_JUMP_EQUAL, 0, 2, 0), words[1], (_JUMP_EQUAL, 1, 0, 0), refuse, allow]


def _if_bits(argument: int, bits: int, *, then: int, otherwise: int) -> list[_Instruction]:
    return [_load(argument), (_JUMP_ANY_BIT, 0, 1, bits), (_ANSWER, 0, 0, then), (_ANSWER, 0, 0, otherwise)]


def _load(argument: int) -> _Instruction:
    """The lower half of an argument; the kernel takes no more of these for what they are compared with."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)
