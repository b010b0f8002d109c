"""The examples in docs/examples run unchanged, each in its language."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import ROOT, Server, clean_environment

EXAMPLES = ROOT / "docs" / "examples"
IMAGE = ROOT / "tests" / "pages" / "notice.jpg"
SIZE = "640x300"

COMMANDS = {
    "read.sh": ("sh",),
    "read.py": (sys.executable,),
    "read.mjs": ("node",),
    "Read.java": ("java",),
    "read.go": ("go", "run"),
}


def run_example(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the example; skips the test if its language is not installed."""
    command: Sequence[str] = COMMANDS[name]
    needed = "curl" if name == "read.sh" else command[0]
    if shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed")
    return subprocess.run(
        [*command, str(EXAMPLES / name), *args],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.iterdir() if file.is_file()))
def test_an_example_prints_the_text_of_the_image(name: str, server: Server) -> None:
    done = run_example(name, server.url, str(IMAGE))
    assert (done.returncode, done.stderr) == (0, "")
    assert SIZE in done.stdout


# The other examples take seconds to compile.
@pytest.mark.parametrize("name", ["read.sh", "read.py", "read.mjs"])
def test_an_example_prints_the_error_of_the_service(name: str, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_text("no image")
    done = run_example(name, server.url, str(file))
    assert "This is plain text." in done.stdout + done.stderr
