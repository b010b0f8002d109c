"""The client and `ocrsvc read --url` work where Python has no Unix modules, as on Windows."""

import subprocess
import sys

from support import ROOT, run_server

# Python's own event loop for Unix needs the rest.
WITHOUT_UNIX = """
import os, socket, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fork", "sched_getaffinity", "memfd_create", "geteuid", "statvfs", "pread"):
    delattr(os, name)
del socket.TCP_USER_TIMEOUT
"""
CLIENT = """
from ocrsvc.client import Client
with Client(sys.argv[1]) as client:
    print(client.read(sys.argv[2]).text)
"""
COMMAND = """
sys.argv = ["ocrsvc", "read", "--url", *sys.argv[1:]]
from ocrsvc.cli.main import run
run()
"""


def test_client_and_command_read_without_unix_modules() -> None:
    page = ROOT / "tests" / "pages" / "notice.png"
    with run_server() as server:
        for program in (CLIENT, COMMAND):
            command = [sys.executable, "-c", WITHOUT_UNIX + program, server.url, str(page)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("640x300\n")
