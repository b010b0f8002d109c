"""The commands in README and docs/ run as written, except those that need another machine or service."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import GRAY, pdf
from image_support import png
from support import ROOT, Server, run_server

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "adapters").glob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_HERE = re.compile(
    # Programs that may be missing here, or that other tests run.
    r"^(make|podman|docker|helm|kubectl|sbatch|sudo|systemctl|install|paddleocr_mcp|net\.|duckdb|openssl|pytest)\b"
    r"|^pip |-m venv|^ocr/bin|^/opt/|^[A-Z]+=\S+ sbatch|^export GRAFANA"  # installations
    r"|\bserve\b|benchmarks/|\btune\b|\boptimize\b|\bmodels\b|\bcheck\b|OCRSVC_MODELS"  # tested elsewhere
    r"|https://127|files\.example|s3://|10\.0\.0|//host|--on\b|/data/|/srv/|:8501|--dry-run|segmented|[?]lang=|model=|/etc/|parquet|OCRSVC_CONFIG"
    r"|…|94b7485a|^ocrsvc: "  # placeholders for the reader's values, and output
)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the commands of each code block; in a console session, what follows its prompts."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        found, command = [], ""
        for line in lines:
            command += line + "\n"
            try:
                is_whole = not shlex.split(command, comments=True) or not command.rstrip().endswith("|")
            except ValueError:  # a quoted string continues in the next line
                is_whole = False
            if is_whole:
                found.append(command.strip())
                command = ""
        yield [each for each in found if each and not each.startswith("#")]


RUNNABLE = {page: [[one for one in block if not NOT_HERE.search(one)] for block in commands(page)] for page in PAGES}
CASES = [(page, [block for block in blocks if block]) for page, blocks in RUNNABLE.items() if any(blocks)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with run_server({"OCRSVC_WORKERS": "1"}) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the commands use."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for name in ("scans", "papers", "pages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(png(60, 40, 255))
    for name in ("1", "2", "page", "form"):
        (tmp_path / f"{name}.png").write_bytes(png(60, 40, 255))
        (tmp_path / f"{name}.jpg").write_bytes(png(60, 40, 255, ".jpg"))
    for name in ("contract", "book", "letter", "scan"):
        (tmp_path / f"{name}.pdf").write_bytes(pdf(GRAY))
    (tmp_path / "report.pdf").write_bytes(pdf(b"BT /F 12 Tf 6 12 Td (Report) Tj ET"))
    return tmp_path


@pytest.mark.parametrize("blocks", [each for _, each in CASES], ids=[str(page.relative_to(ROOT)) for page, _ in CASES])
def test_commands_of_a_page_run(blocks: list[list[str]], folder: Path, server: Server) -> None:
    port = server.url.rsplit(":", 1)[1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(folder), "OCRSVC_ENGINE": "fake", "OCRSVC_BIND": f"127.0.0.1:{port}"}
    for block in blocks:
        script = "\n".join(["set -euo pipefail", 'curl() { command curl --fail-with-body -sS "$@"; }', *block])
        script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("/var/lib/ocrsvc", str(folder))
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout[-500:]}{done.stderr[-2000:]}"
