"""The client and `ocrsvc read --url` work where Python has no Unix modules, as on Windows."""

import subprocess
import sys

from support import ROOT, data_of, run_server

# Removes Unix modules and functions, except those that asyncio needs.
WITHOUT_UNIX = data_of("programs")["without_unix"]
CLIENT = data_of("programs")["client"]
COMMAND = data_of("programs")["command"]


def test_client_and_command_read_without_unix_modules() -> None:
    page = ROOT / "tests" / "pages" / "notice.png"
    with run_server() as server:
        for program in (CLIENT, COMMAND):
            command = [sys.executable, "-c", WITHOUT_UNIX + program, server.url, str(page)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("640x300\n")
