"""The image of deploy/Containerfile: built by buildah on a base from debootstrap, run by podman."""

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
# An arbitrary user id with group 0, as OpenShift assigns to each project.
USER = "1000650000:0"
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"
_START_S = 3 * START_S


@dataclass(frozen=True)
class Limits:
    """Resource limits of the container."""

    pids: int = 512
    memory: str = "2g"
    shm: str = "64m"
    tmp: str = "512m"


def make_base(name: str = BASE) -> None:
    """Create a base image with Debian's Python only, unless an image of that name exists."""
    if subprocess.run(["podman", "image", "exists", name], check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        run(["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", "bookworm", str(root)])
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            run(["podman", "import", "-", name], stdin=tar.stdout)


def build(base: str, volumes: Sequence[str], image: str = IMAGE) -> float:
    """Build the image, and return the seconds it took.

    Args:
        volumes: Mounts during the build, as HOST:CONTAINER:ro, such as the package index's certificate.
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
    """Size of the image, including its base."""
    description = run(["podman", "image", "inspect", image])
    return int(json.loads(description)[0]["Size"])


def found(program: str) -> str:
    """Path of a program."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert path is not None, f"{program} is missing: install {' '.join(NEEDED)}"
    return path


def run(command: Sequence[str], stdin: IO[bytes] | None = None) -> str:
    """Run a program and return its stdout. Raises RuntimeError with its stderr when it fails."""
    done = subprocess.run(command, cwd=ROOT, stdin=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} … ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


class ContainerProcess:
    """The arbiter in a container, with the interface of a local process."""

    def __init__(self, name: str, attached: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._attached = attached
        self.pid = 0

    def find(self) -> bool:
        """Read the process id; returns whether the container runs."""
        done = subprocess.run(
            ["podman", "inspect", "--format", "{{.State.Pid}}", self.name], capture_output=True, text=True, check=False
        )
        self.pid = int(done.stdout.strip() or 0)
        return self.pid > 0

    def send_signal(self, number: int) -> None:
        """Send a signal to the arbiter."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The arbiter's exit code; None while it runs."""
        return self._attached.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait for the arbiter to end, and return its exit code."""
        return self._attached.wait(timeout_s)


@contextmanager
def serve_container(
    env: Mapping[str, str], folder: Path, limits: Limits = Limits(), workers: int = WORKERS
) -> Iterator[Service]:
    """Serve from the image on a free local port; returns once the workers are ready.

    The root file system is read-only; the user has no name, no home and no capabilities, and cannot gain any. `folder`
    is mounted at the same path.
    """
    name = f"ocrsvc-{time.monotonic_ns()}"
    log = folder / f"{name}.log"
    # The container's user must be able to write to files that this user made.
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
    """Podman's flags for a container with minimal privileges."""
    return [
        *("--read-only", "--read-only-tmpfs=false", f"--tmpfs=/tmp:size={limits.tmp}", f"--shm-size={limits.shm}"),
        *(f"--user={USER}", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=host"),
        *(f"--pids-limit={limits.pids}", f"--memory={limits.memory}"),
        # Podman's default limits may exceed the machine's, and its health timers need systemd.
        *("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", "--health-interval=disable"),
    ]


def run_in_container(name: str, *command: str) -> str:
    """Run a program in a container and return its stdout."""
    return run(["podman", "exec", name, *command])
