"""Real, unmodified clients of the protocols that serve models, each in an environment of its own.

OCRSVC_CLIENTS names a folder with these virtual environments: `triton` with tritonclient[http,grpc], and `min_tfs` with
min-tfs-client and protobuf 3.20. Their pins exclude ours, so they are never installed here. Where there are none, the
recorded exchanges in test_models_rest.py and test_rpc.py stand in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, run_server
from web_support import picture

CLIENTS = Path(os.environ.get("OCRSVC_CLIENTS", ROOT.parent / "shared" / "clients"))
# The fake engine's first line is the size of the image.
SIZE = "64x32"


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    """Where one service listens: for HTTP, and for gRPC."""
    with run_server({"OCRSVC_GRPC_BIND": "127.0.0.1:0", "OCRSVC_WORKERS": "2"}) as server:
        http = server.url.removeprefix("http://")
        yield http, server.wait_for(r"Listening for gRPC at: (\S+)")[1]


def run(environment: str, *arguments: str) -> str:
    python = CLIENTS / environment / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"there is no {python}; OCRSVC_CLIENTS names the folder that holds the clients' environments")
    script = ROOT / "tests" / "clients" / f"{environment}.py"
    done = subprocess.run(
        [str(python), str(script), *arguments],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def image(tmp_path: Path) -> str:
    file = tmp_path / "page.png"
    file.write_bytes(picture())
    return str(file)


def test_tritonclient_over_http_and_grpc(addresses: tuple[str, str], image: str) -> None:
    assert run("triton", *addresses, image, SIZE) == "all good\n"


def test_min_tfs_client(addresses: tuple[str, str], image: str) -> None:
    assert run("min_tfs", *addresses[1].split(":"), image, SIZE) == "all good\n"
