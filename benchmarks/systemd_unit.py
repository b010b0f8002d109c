"""Runs deploy/ocrsvc.service and ocrsvc.socket under a real systemd: reading, restart and reload in the unit's sandbox.

    python benchmarks/systemd_unit.py       after benchmarks/image.py, whose image it takes

Needs root, podman and Debian's systemd-container. The image's files become a machine's root: Debian's systemd is
installed there and booted by systemd-nspawn, which shares this machine's network. The default engine reads an image and
a PDF; then, with the fake engine, clients check every answer while the service is restarted and reloaded. The last line
of stdout is the result as JSON; exit code 1 if anything failed. MemoryMax and TasksMax apply only if systemd has those
control groups, which the second line shows.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.container import IMAGE, run
from bench.machine import print_machine
from image import PAGE, WORDS, chinese_pdf, read
from soak import ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests"))

from proxies import reading_clients, texts_of

PORT = 18999
SHIPPED_PORT = ":8000"
READY_S = 120.0
ROUNDS = 3
LANDLOCK = "landlock_create_ruleset landlock_add_rule landlock_restrict_self"
FAKE = "OCRSVC_ENGINE=fake\nOCRSVC_FAKE_LATENCY_S=0.1\nOCRSVC_ENGINE_THREADS=4\n"


@dataclass(frozen=True)
class Machine:
    """A booted systemd container.

    Attributes:
        root: Folder with its files.
        leader: Process id of its init, outside the container.
    """

    root: Path
    leader: int
    port: int = PORT

    @property
    def url(self) -> str:
        """URL of its service."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, *command: str) -> str:
        """Run a program in the container; returns its output."""
        return run(["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-p", *command])

    def configure(self, settings: str) -> None:
        """Write the unit's environment file, which systemd reads at a start."""
        folder = self.root / "etc" / "ocrsvc"
        folder.mkdir(exist_ok=True)
        (folder / "environment").write_text(f"OCRSVC_WORKERS=2\nOCRSVC_BIND=127.0.0.1:{PORT}\n{settings}")


def make_root(root: Path) -> None:
    """Install the image's files, systemd, the user, and the units as shipped except for path and port."""
    container = run(["podman", "create", "--health-interval=disable", IMAGE]).strip()
    try:
        with subprocess.Popen(["podman", "export", container], stdout=subprocess.PIPE) as exported:
            run(["tar", "-x", "-C", str(root)], stdin=exported.stdout)
    finally:
        run(["podman", "rm", container])
    (root / "etc" / "resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
    install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd systemd-sysv dbus procps"
    run(["chroot", str(root), "sh", "-c", f"export DEBIAN_FRONTEND=noninteractive; {install}"])
    run(["chroot", str(root), "useradd", "--system", "ocrsvc"])
    for name, wanted in (("ocrsvc.service", "multi-user"), ("ocrsvc.socket", "sockets")):
        text = (ROOT / "deploy" / name).read_text(encoding="utf-8").replace("/opt/ocrsvc/.venv/bin", "/opt/ocrsvc/bin")
        text = text.replace(SHIPPED_PORT, f":{PORT}")
        (root / "etc" / "systemd" / "system" / name).write_text(text)
        wants = root / "etc" / "systemd" / "system" / f"{wanted}.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / name).symlink_to(f"../{name}")


@contextmanager
def booted(root: Path) -> Iterator[Machine]:
    """Boot the container; yields it when its service is ready, and halts it when the block ends."""
    command = ["systemd-nspawn", "--quiet", f"--directory={root}", "--boot", "--register=no", "--keep-unit"]
    # nspawn's own system-call filter is older than Landlock.
    nspawn = subprocess.Popen(
        [*command, f"--system-call-filter={LANDLOCK}", "--console=pipe"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
    try:
        wait_until(lambda: is_ready(Machine(root, 0)), READY_S, lambda: "the service did not become ready")
        machine = Machine(root, int(children.read_text().split()[-1]))
        yield machine
        machine.run("systemctl", "--no-block", "poweroff")
        nspawn.wait(READY_S)
    finally:
        # Kill its children, because nspawn leaves them running.
        for child in children.read_text().split() if nspawn.poll() is None else ():
            os.kill(int(child), signal.SIGKILL)
        nspawn.kill()
        nspawn.wait()


def is_ready(machine: Machine) -> bool:
    """Whether /readyz answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", machine.port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def describe(machine: Machine) -> None:
    """Print the restrictions that the kernel and systemd apply to the service."""
    main = machine.run("systemctl", "show", "--property=MainPID", "--value", "ocrsvc").strip()
    status = machine.run("cat", f"/proc/{main}/status")
    print(", ".join(re.findall(r"(?:Uid|CapBnd|CapEff|NoNewPrivs|Seccomp|Seccomp_filters):\s+\S+", status)))
    controllers = machine.run("cat", f"/proc/{main}/cgroup")
    held = [line for line in controllers.splitlines() if "ocrsvc.service" in line]
    print(f"control groups of the unit: {', '.join(held)}")
    exposure = machine.run("systemd-analyze", "security", "--no-pager", "ocrsvc.service").splitlines()[-1]
    print(exposure.strip("→ "))


def warnings(machine: Machine) -> list[str]:
    """Warnings and errors in the service's log."""
    lines = machine.run("journalctl", "--unit=ocrsvc", "--output=cat", "--no-pager").splitlines()
    return [line for line in lines if re.search(r"\[(WARNING|ERROR|CRITICAL)\]|Traceback", line)]


def check_reading(machine: Machine) -> list[str]:
    """Read with the default engine under the unit's filter; returns what was wrong."""
    wrong = [f"the image was read as {text!r}" for text in [read(machine, PAGE.read_bytes())] if WORDS not in text]
    wrong += [f"the PDF was read as {text!r}" for text in [read(machine, chinese_pdf(WORDS))] if WORDS not in text]
    return wrong + warnings(machine)


def disturb(machine: Machine) -> Counter[str]:
    """Restart and reload the service under load; returns the clients' outcomes."""
    machine.configure(FAKE)
    machine.run("systemctl", "restart", "ocrsvc")
    with reading_clients(machine.url, texts_of(machine.url)) as outcomes:
        for _ in range(ROUNDS):
            for verb in ("restart", "reload"):
                machine.run("systemctl", verb, "ocrsvc")
                wanted = outcomes.total() + 100
                wait_until(lambda wanted=wanted: outcomes.total() > wanted, READY_S, lambda: "no answers")
                time.sleep(1.0)
    return outcomes


def main() -> int:
    """Run the benchmark: boot, read, restart and reload."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        make_root(root)
        machine = Machine(root, 0)
        machine.configure("")
        with booted(root) as machine:
            describe(machine)
            wrong = check_reading(machine)
            outcomes = disturb(machine)
    right = outcomes.pop("right", 0)
    print(f"{ROUNDS} restarts and {ROUNDS} reloads under load: {right} answered, {outcomes.total()} failed")
    print(json.dumps({"wrong": wrong, "answered": right, "failed": dict(outcomes)}))
    return 1 if wrong or outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
