"""Sandboxes processes that parse untrusted files, and prevents core dumps of processes that hold secrets.

Landlock (Linux 5.13 and later) lets a thread and its children open only some files, for reading, and reach no other
process. seccomp refuses connections, new processes, writing files by name, and access to other processes. Its filter is
a deny list, because an allow list would break with new versions of the C library, Python and other libraries.
"""

import ctypes
import errno
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_NICE: Final = 5
_OOM_SCORE: Final = "500"


class Restrictions(NamedTuple):
    """The restrictions in force: Landlock's ABI version (0: no Landlock), and whether a seccomp filter is active."""

    landlock: int
    seccomp: bool


def restrict(readable: Iterable[str] = ()) -> Restrictions:
    """Give up the network, new processes, other processes and most files, permanently; open files stay open.

    Call it in a single-threaded process after it has loaded its libraries: it restricts only the calling thread and its
    children. `readable` files and folders can still be opened for reading; without Landlock all files can.
    """
    landlock, seccomp = 0, False
    with suppress(OSError):
        landlock = confine_to(readable)
    with suppress(OSError):
        refuse_calls()
        seccomp = True
    return Restrictions(landlock, seccomp)


def limit_resources(memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Set hard resource limits for this process; `memory_bytes` limits its heap and thread stacks."""
    limits = {"DATA": memory_bytes, "FSIZE": file_bytes, "NOFILE": open_files, "CORE": 0}
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def lower_priority(pid: int, by: int = _NICE) -> None:
    """Raise a process's nice value right after its start, because loading its libraries already takes much CPU time."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + by)


def raise_oom_score() -> None:
    """Let the kernel kill this process first when memory runs out, if the system permits it."""
    with suppress(OSError):
        dumpable = _check(int(_LIBC.prctl(_GET_DUMPABLE, *[ctypes.c_ulong(0)] * 4)))
        # After `forbid_core_dumps` this process may not write its files in /proc: undo that for a moment.
        prctl(_SET_DUMPABLE, 1)
        try:
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")
        finally:
            prctl(_SET_DUMPABLE, dumpable)


def forbid_core_dumps() -> None:
    """Disable core dumps, and let only processes with CAP_SYS_PTRACE read this process's memory.

    Forked processes inherit both; exec and a change of the user id reset the second. Both are needed, because the
    kernel ignores the size limit of core dumps if it pipes them to a handler.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(_SET_DUMPABLE, 0)


def ignore_signals() -> None:
    """Ignore the signals of a terminal or service manager, because the parent ends this process."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ending, signal.SIG_IGN)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; ignore other signals.

    `parent` is the parent's process id, which the parent passes: if it has ended already, os.getppid() differs.
    """
    ignore_signals()
    prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


# Landlock: which files this process may open.

# Numbers of Landlock's system calls, the same on every architecture.
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_READ_FILE: Final = 1 << 2
_READ_DIRECTORY: Final = 1 << 3
# File rights that Landlock can take away, as bits by ABI version: 2 adds moves between folders, 3 truncate, 5 ioctl.
_FILE_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
# Rights to bind and connect TCP sockets, as bits; Landlock can take them away from ABI version 4 on.
_NETWORK_RIGHTS: Final = {4: 0b11}
# From ABI version 6 on: no abstract Unix sockets and no signals outside of the sandbox.
_SCOPES: Final = {6: 0b11}
_ATTRIBUTE_BYTES: Final = {1: 8, 4: 16, 6: 24}


class _Attribute(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def read_version() -> int:
    """Landlock's ABI version in this kernel. Raises OSError if the kernel has no Landlock."""
    return system_call(_CREATE_RULESET, 0, 0, _ASK_VERSION)


def confine_to(readable: Iterable[str]) -> int:
    """Let this thread open only these files and folders, and only for reading; open files stay open.

    Paths that cannot be opened are skipped. Returns Landlock's ABI version; raises OSError without Landlock.
    """
    version = read_version()
    tables = (_FILE_RIGHTS, _NETWORK_RIGHTS, _SCOPES)
    attribute = _Attribute(*(supported(table, version) for table in tables))
    ruleset = system_call(_CREATE_RULESET, ctypes.addressof(attribute), supported(_ATTRIBUTE_BYTES, version), 0)
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        prctl(NO_NEW_PRIVILEGES, 1)
        system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def supported(table: dict[int, int], version: int) -> int:
    """Look up `version` in a table by Landlock's ABI versions: the value of the newest one not above it, else 0."""
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


# seccomp: which system calls this process may make.

# System calls that are always refused: name, number on x86_64, number on aarch64 (-1: no such call).
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
# Filters cannot check these calls' arguments in memory: fail with ENOSYS, so that the C library uses older calls.
_ABSENT: Final = "openat2 437 437, clone3 435 435"
# Calls allowed only on this process: their first argument must be its process id; for _OWN_OR_ZERO it may also be 0.
_OWN: Final = "kill 62 129, tgkill 234 131"
_OWN_OR_ZERO: Final = (
    "sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274"
)
# Only queries are allowed: the third argument, a pointer to a new limit, must be null.
_LIMIT: Final = "prlimit64 302 261"
# Files may be opened only without the flags in _CHANGES. Flags are the second argument of open, the third of openat.
_OPEN: Final = "open 2 -1"
_OPENAT: Final = "openat 257 56"
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Only new threads are allowed, not new processes.
_CLONE: Final = "clone 56 220"
_THREAD: Final = 0x10000

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
# Opcodes of classic BPF, down to _ANSWER: load a word of the system call, compare and jump, return an action.
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
# System calls of the x32 ABI on x86_64 have numbers from this one on.
_X32: Final = 0x40000000


# For each architecture: its number in the kernel's audit subsystem, and its column in the tables above.
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_calls() -> None:
    """Apply the seccomp filter to this thread and its children.

    Raises OSError without seccomp, and on architectures whose system call numbers are unknown.
    """
    architecture = _ARCHITECTURES.get(os.uname().machine)
    if architecture is None or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"there is no filter for {os.uname().machine}")
    code = b"".join(struct.pack("=HBBI", *line) for line in _filter_for(*architecture, os.getpid()))
    text = ctypes.create_string_buffer(code, len(code))
    prctl(NO_NEW_PRIVILEGES, 1)
    program = _Program(len(code) // _INSTRUCTION_BYTES, ctypes.addressof(text))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _filter_for(audit: int, column: int, process: int) -> Iterator[_Instruction]:
    """The BPF program as (operation, skip if true, skip if false, value); a skip counts instructions."""

    def numbers(calls: str) -> list[int]:
        return [number for call in calls.split(",") if (number := int(call.split()[column])) >= 0]

    yield (_LOAD, 0, 0, _ARCHITECTURE_AT)
    yield (_JUMP_EQUAL, 1, 0, audit)
    yield (_ANSWER, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    yield (_JUMP_AT_LEAST, 0, 1, _X32)
    yield (_ANSWER, 0, 0, _REFUSE)
    yield from _where(numbers(_REFUSED), [(_ANSWER, 0, 0, _REFUSE)])
    yield from _where(numbers(_ABSENT), [(_ANSWER, 0, 0, _FAIL | errno.ENOSYS)])
    yield from _where(numbers(_OWN), _if_equal(0, [process]))
    yield from _where(numbers(_OWN_OR_ZERO), _if_equal(0, [process, 0]))
    refuse, allow = (_ANSWER, 0, 0, _REFUSE), (_ANSWER, 0, 0, _ALLOW)
    low, high = ((_LOAD, 0, 0, _ARGUMENTS_AT + 8 * 2 + at) for at in (0, 4))
    tests = [low, (_JUMP_EQUAL, 0, 2, 0), high, (_JUMP_EQUAL, 1, 0, 0)]
    yield from _where(numbers(_LIMIT), [*tests, refuse, allow])
    yield from _where(numbers(_OPEN), _if_bits(1, _CHANGES, then=_REFUSE, otherwise=_ALLOW))
    yield from _where(numbers(_OPENAT), _if_bits(2, _CHANGES, then=_REFUSE, otherwise=_ALLOW))
    yield from _where(numbers(_CLONE), _if_bits(0, _THREAD, then=_ALLOW, otherwise=_REFUSE))
    yield (_ANSWER, 0, 0, _ALLOW)


def _where(numbers: Sequence[int], block: Sequence[_Instruction]) -> Iterator[_Instruction]:
    for number in numbers:
        yield (_JUMP_EQUAL, 0, len(block), number)
        yield from block


def _if_equal(argument: int, values: Sequence[int]) -> list[_Instruction]:
    tests = [(_JUMP_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_load(argument), *tests, (_ANSWER, 0, 0, _REFUSE), (_ANSWER, 0, 0, _ALLOW)]


def _if_bits(argument: int, bits: int, *, then: int, otherwise: int) -> list[_Instruction]:
    return [_load(argument), (_JUMP_ANY_BIT, 0, 1, bits), (_ANSWER, 0, 0, then), (_ANSWER, 0, 0, otherwise)]


def _load(argument: int) -> _Instruction:
    """Load an argument's lower 32 bits; the kernel ignores the upper bits of the arguments that the filter checks."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)


# System calls that Python has no function for, made through the C library.

NO_NEW_PRIVILEGES: Final = 38
"""prctl option: executed programs gain no privileges; required before Landlock and seccomp."""
# prctl option: the signal that this process gets when the thread that started it ends.
PARENT_DEATH_SIGNAL: Final = 1
_GET_DUMPABLE: Final = 3
_SET_DUMPABLE: Final = 4

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int, more: int = 0) -> None:
    """Set an option of this process; pass addresses as integers. Raises OSError."""
    _check(_LIBC.prctl(option, *map(ctypes.c_ulong, (value, more, 0, 0))))


def system_call(number: int, *arguments: int) -> int:
    """Make a system call; pass addresses as integers. Raises OSError."""
    return _check(int(_LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))))


def _check(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer
