"""The image of deploy/Containerfile: built with buildah on a base from debootstrap, and run with podman."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from soak import ROOT, SETTLE_S, START_S, WORKERS, Service, wait_until

BASE = "localhost/ocrsvc-base:bookworm"
IMAGE = "localhost/ocrsvc:cpu"
NEEDED = ("buildah", "podman", "debootstrap", "runc")
# Nobody's in particular, as OpenShift chooses one for each project, with the group that it gives to all of them.
USER = "1000650000:0"
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"
_START_S = 3 * START_S


@dataclass(frozen=True)
class Limits:
    """What the container may use."""

    pids: int = 512
    memory: str = "2g"
    shm: str = "64m"
    tmp: str = "512m"


def make_base(name: str = BASE) -> None:
    """A base image with Python and nothing else, of Debian's packages, unless there is one of that name."""
    if subprocess.run(["podman", "image", "exists", name], check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        run(["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", "bookworm", str(root)])
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            run(["podman", "import", "-", name], stdin=tar.stdout)


def build(base: str, volumes: Sequence[str], image: str = IMAGE) -> float:
    """Build the image; the seconds that it took.

    Args:
        volumes: Mounted while it is built, as HOST:CONTAINER:ro, such as a certificate of the package index.
    """
    mounts = [f"--volume={volume}" for volume in volumes]
    began_s = time.monotonic()
    run(
        [
            *("buildah", "build", "--runtime", found("runc"), "--format", "docker", "--network", "host", "--layers"),
            *(*mounts, "--build-arg", f"BASE={base}", "-t", image, "-f", "deploy/Containerfile", "."),
        ]
    )
    return time.monotonic() - began_s


def size_bytes(image: str = IMAGE) -> int:
    """Of the image, with its base."""
    said = run(["podman", "image", "inspect", image])
    return int(json.loads(said)[0]["Size"])


def found(program: str) -> str:
    """Where a program is."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert path is not None, f"{program} is missing: install {' '.join(NEEDED)}"
    return path


def run(command: Sequence[str], stdin: IO[bytes] | None = None) -> str:
    """What a program writes to stdout; raises where it fails, with what it wrote to stderr."""
    done = subprocess.run(command, cwd=ROOT, stdin=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} … ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


class ContainerProcess:
    """The arbiter inside a container, as the benchmarks see a process of this machine.

    Attributes:
        pid: The arbiter's process id outside the container.
    """

    def __init__(self, name: str, attached: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._attached = attached
        self.pid = 0

    def find(self) -> bool:
        """Whether it runs; notes its process id."""
        done = subprocess.run(
            ["podman", "inspect", "--format", "{{.State.Pid}}", self.name], capture_output=True, text=True, check=False
        )
        self.pid = int(done.stdout.strip() or 0)
        return self.pid > 0

    def send_signal(self, number: int) -> None:
        """Sends a signal to the arbiter."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code of the arbiter, None while it runs."""
        return self._attached.poll()

    def wait(self, timeout_s: float) -> int:
        """The exit code of the arbiter when it ends."""
        return self._attached.wait(timeout_s)


@contextmanager
def serve_container(
    env: Mapping[str, str], folder: Path, limits: Limits = Limits(), workers: int = WORKERS
) -> Iterator[Service]:
    """The image as a service, on a free port of this machine, with as many workers ready.

    The root is read-only, the user has no name, no home and no capability, and can get none; `folder` is mounted at the
    same place.
    """
    name = f"ocrsvc-{time.monotonic_ns()}"
    log = folder / f"{name}.log"
    # What the user has made for the service must be the service's to write.
    folder.chmod(0o777)
    for made in folder.iterdir():
        made.chmod(0o777)
    settings = [f"--env={key}={value}" for key, value in {"OCRSVC_WORKERS": str(workers), **env}.items()]
    command = ["podman", "--runtime", found("runc"), "run", "--rm", "--name", name, *flags(limits), *settings]
    command += [f"--volume={folder}:{folder}", "--entrypoint", '["env","-u","HOME","ocrsvc"]', IMAGE]
    with log.open("wb") as out:
        attached = subprocess.Popen([*command, "serve", "-b", "127.0.0.1:0"], stdout=out, stderr=subprocess.STDOUT)
    process: Any = ContainerProcess(name, attached)
    service = Service(process, 0, log)
    try:
        wait_until(
            lambda: service.text().count("READY in") >= workers or attached.poll() is not None, _START_S, service.text
        )
        match = re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", service.text())
        assert match is not None, service.text()
        assert process.find(), service.text()
        service.port = int(match[1])
        yield service
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(SETTLE_S)
    finally:
        subprocess.run(["podman", "rm", "--force", "--time", "0", name], capture_output=True, check=False)
        attached.wait(SETTLE_S)


def flags(limits: Limits) -> list[str]:
    """Podman's flags for a container that may do as little as the service can do with."""
    return [
        *("--read-only", "--read-only-tmpfs=false", f"--tmpfs=/tmp:size={limits.tmp}", f"--shm-size={limits.shm}"),
        *(f"--user={USER}", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=host"),
        *(f"--pids-limit={limits.pids}", f"--memory={limits.memory}"),
        # Podman's own are more than a machine may allow, and its timers need systemd.
        *("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", "--health-interval=disable"),
    ]


def inside(name: str, *command: str) -> str:
    """What a program inside a container writes to stdout."""
    return run(["podman", "exec", name, *command])
