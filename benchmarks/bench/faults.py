"""The faults that chaos_faults.py injects: failing system calls, and what disturbs the service meanwhile."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak import DOUBLES, Service, wait_until

from bench.processes import children_of, family_of

sys.path[:0] = [str(DOUBLES), str(DOUBLES.parent)]

from documents import pdf  # noqa: E402  the path must be known first
from os_faults import Faults  # noqa: E402  as above

SETTLE_S = 30.0
TIMEOUT_S = 3  # timeout of a worker's heartbeat
CGROUPS = Path("/sys/fs/cgroup")
DAY_S = 86_400
LEAK_BYTES = 2_000_000
ROOM_BYTES = 30_000_000


class Skipped(Exception):
    """The fault cannot be injected on this machine; the message gives the reason."""


@dataclass
class Scene:
    """A service under load, and the actions that disturb it.

    Attributes:
        failed: Number of processes that were killed, by this program or by the fault.
    """

    service: Service
    faults: Faults
    folder: Path
    seconds: float
    failed: int = 0

    def wait(self) -> None:
        """Wait for the duration of a fault."""
        time.sleep(self.seconds)

    def kill_worker(self) -> None:
        """Send SIGKILL to the first worker, as the kernel does when memory runs out."""
        os.kill(self.service.workers()[0], signal.SIGKILL)
        self.failed += 1

    def replace_worker(self) -> None:
        """Send SIGUSR2 to the last worker, as an operator does to replace it."""
        os.kill(self.service.workers()[-1], signal.SIGUSR2)

    def read_configuration(self) -> None:
        """Send SIGHUP, which replaces every worker."""
        self.service.process.send_signal(signal.SIGHUP)


Injection = Callable[[Scene], None]


@dataclass(frozen=True)
class Fault:
    """A row of the table of faults.

    Attributes:
        inject: Injects the fault, disturbs the service, waits, and lifts the fault.
        env: Settings of the service for this fault; "{folder}" is replaced by the fault's folder.
        made: Context manager that prepares the folder before the service starts. Raises Skipped.
    """

    name: str
    inject: Injection
    env: Mapping[str, str] = field(default_factory=dict)
    made: Callable[[Path], Any] | None = None


def refused(call: str, error: int, *disturb: Callable[[Scene], None], path: str = "") -> Injection:
    """Make a system call fail in all processes of the service."""

    def inject(scene: Scene) -> None:
        with scene.faults.refused(call, error, path=path):
            for act in disturb:
                act(scene)
            scene.wait()

    return inject


def clock_moved(*by_s: int) -> Injection:
    """Move the wall clock, and replace a worker after each jump."""

    def inject(scene: Scene) -> None:
        for step_s in by_s:
            with scene.faults.clock_moved(step_s):
                scene.replace_worker()
                scene.wait()

    return inject


def slow_disk(scene: Scene) -> None:
    """Make every open, write and fsync of a file take 0.3 s."""
    with scene.faults.slow_disk(0.3, str(scene.folder)):
        scene.kill_worker()
        scene.wait()


def memfd_refused(scene: Scene) -> None:
    """Make memfd_create fail: PDFs, which need it, must be refused, and images must still be read."""
    with scene.faults.refused("memfd_create", errno.ENOMEM):
        end_s = time.monotonic() + scene.seconds
        while time.monotonic() < end_s:
            status = post(scene.service.port, pdf(b""))
            assert status >= http.client.INTERNAL_SERVER_ERROR, f"a PDF got status {status} although memfd_create fails"
    assert post(scene.service.port, pdf(b"")) == http.client.OK


def pid_folder_gone(scene: Scene) -> None:
    """Remove the folder of the pid file, and create it again."""
    run = scene.folder / "run"
    mode = run.stat().st_mode
    shutil.rmtree(run)
    scene.read_configuration()
    scene.wait()
    run.mkdir()
    # Keep the mode: the service may run as another user.
    run.chmod(mode)
    wait_until((scene.folder / "run" / "pid").exists, SETTLE_S, lambda: "the pid file was not written again")


def stopped_worker(scene: Scene) -> None:
    """Stop a worker by SIGSTOP: it no longer answers, and only SIGKILL ends it."""
    worker = scene.service.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    scene.failed += 1
    wait_until(lambda: worker not in scene.service.workers(), SETTLE_S, lambda: "the stopped worker was not killed")


def stopped_child(scene: Scene) -> None:
    """Stop a process that runs an engine by SIGSTOP."""
    fork_servers = [pid for worker in scene.service.workers() for pid in children_of(worker)]
    child = next(pid for fork_server in fork_servers for pid in children_of(fork_server))
    os.kill(child, signal.SIGSTOP)
    scene.failed += 1
    wait_until(lambda: not Path(f"/proc/{child}").exists(), SETTLE_S, lambda: "the stopped process was not killed")


def frozen(scene: Scene) -> None:
    """Stop all processes for longer than the heartbeat's timeout, as in a paused container."""
    family = list(family_of(scene.service.process.pid))
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * TIMEOUT_S)
    for pid in family:
        os.kill(pid, signal.SIGCONT)
    scene.wait()


@contextmanager
def cgroup(controller: str, pids: Sequence[int]) -> Iterator[Path]:
    """Move the processes and their future children into a new cgroup. Raises Skipped."""
    first, second = CGROUPS / controller / "ocrsvc-chaos", CGROUPS / "ocrsvc-chaos"
    group = first if first.parent.is_dir() else second
    try:
        home = group.parent / "cgroup.procs"
        group.mkdir()
        try:
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
            yield group
        finally:
            for left in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    home.write_text(left)
            group.rmdir()
    except PermissionError as error:
        raise Skipped(f"no cgroup can be made: {error}") from error
    except FileNotFoundError as error:
        raise Skipped(f"no cgroup with {controller}: {error}") from error


def no_more_processes(scene: Scene) -> None:
    """Let the service start no further process or thread."""
    with cgroup("pids", list(family_of(scene.service.process.pid))) as group:
        # A limit below the current number ends no process, but lets none start.
        (group / "pids.max").write_text("1")
        scene.kill_worker()
        scene.wait()
        (group / "pids.max").write_text("max")


def memory_limit(scene: Scene) -> None:
    """Fill the cgroup's memory with a leaking engine, until the kernel kills the largest process."""
    with cgroup("memory", list(family_of(scene.service.process.pid))) as group:
        limits = (group / name for name in ("memory.limit_in_bytes", "memory.max"))
        limit = next(file for file in limits if file.exists())
        usage = sum(rss_bytes(pid) for pid in family_of(scene.service.process.pid))
        limit.write_text(str(usage + ROOM_BYTES))
        scene.wait()
        limit.write_text("-1" if limit.name == "memory.limit_in_bytes" else "max")
    scene.failed += scene.service.text().count("was sent SIGKILL")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def small_tmpfs(folder: Path) -> Iterator[None]:
    """Mount a tmpfs for 20 files at folder/shm. Raises Skipped."""
    target = folder / "shm"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=20", "tmpfs", str(target)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skipped(f"no tmpfs can be mounted: {error}") from error
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def shared_memory_full(scene: Scene) -> None:
    """Fill the file system of gunicorn's temporary files."""
    fillers = [scene.folder / "shm" / str(number) for number in range(20)]
    for filler in fillers:
        with suppress(OSError):
            filler.touch()
    scene.kill_worker()
    scene.wait()
    for filler in fillers:
        filler.unlink(missing_ok=True)


def make_run(folder: Path) -> Any:
    """Create the folder of the pid file."""
    (folder / "run").mkdir()
    return None


ISOLATED = {"OCRSVC_ISOLATION": "process", "OCRSVC_DEADLINE_S": "5"}
LEAKING = {"OCRSVC_FAKE_LEAK_BYTES": str(LEAK_BYTES), "OCRSVC_RSS_SOFT_BYTES": "0", "OCRSVC_RSS_HARD_BYTES": "0"}
IN_SHM = {"GUNICORN_CMD_ARGS": f"--timeout {TIMEOUT_S} --worker-tmp-dir {{folder}}/shm"}
KILL, REPLACE, READ = Scene.kill_worker, Scene.replace_worker, Scene.read_configuration

FAULTS = (
    Fault("fork refused (EAGAIN), a worker killed", refused("fork", errno.EAGAIN, KILL)),
    Fault("fork refused (ENOMEM), SIGHUP", refused("fork", errno.ENOMEM, READ)),
    Fault("pids.max reached, a worker killed", no_more_processes),
    Fault("pthread_create refused (EAGAIN), a worker killed", refused("pthread_create", errno.EAGAIN, KILL)),
    Fault("mkstemp refused (ENOSPC), a worker killed", refused("open", errno.ENOSPC, KILL, path="wgunicorn-")),
    Fault("full tmpfs instead of /dev/shm, a worker killed", shared_memory_full, IN_SHM, small_tmpfs),
    Fault("epoll_create refused (EMFILE), a worker killed", refused("epoll_create1", errno.EMFILE, KILL)),
    Fault("pipe refused (EMFILE), a worker replaced", refused("pipe2", errno.EMFILE, REPLACE)),
    Fault("open refused (EMFILE), a worker killed", refused("open", errno.EMFILE, KILL)),
    Fault("open refused (ENFILE), SIGHUP", refused("open", errno.ENFILE, READ)),
    Fault("accept refused (EMFILE)", refused("accept4", errno.EMFILE)),
    Fault("accept refused (ENFILE), a worker replaced", refused("accept4", errno.ENFILE, REPLACE)),
    Fault("memfd_create refused (ENOMEM), PDFs", memfd_refused),
    Fault("disk full (ENOSPC), logs, a worker killed", refused("write", errno.ENOSPC, KILL)),
    Fault("disk full (ENOSPC), SIGHUP", refused("write", errno.ENOSPC, READ), {"OCRSVC_PIDFILE": "{folder}/pid"}),
    Fault("folder of the pid file gone, SIGHUP", pid_folder_gone, {"OCRSVC_PIDFILE": "{folder}/run/pid"}, make_run),
    Fault("slow disk (0.3 s a call), a worker killed", slow_disk),
    Fault("clock one day ahead, then one day back", clock_moved(DAY_S, -DAY_S)),
    Fault("a worker stopped (SIGSTOP)", stopped_worker),
    Fault("an engine's process stopped (SIGSTOP)", stopped_child, ISOLATED),
    Fault("all processes stopped for longer than a heartbeat", frozen),
    Fault("memory limit of the cgroup, a leaking engine", memory_limit, LEAKING),
)


def post(port: int, body: bytes) -> int:
    """Post a document to the native API; returns the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/ocr", body)
        return connection.getresponse().status
    finally:
        connection.close()
