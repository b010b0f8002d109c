"""Unmodified Triton and TensorFlow Serving clients list, label, load and unload models of two workers."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from fetch_clients import SOURCES, ClientUnavailable, fetched_path
from image_support import png
from models_support import accept, make_fake, make_version
from support import ROOT, Server, clean_environment, run_server, wait_until
from web_support import as_base64

from ocrsvc.models.state import ModelState, StateStore

SCRIPTS = ROOT / "tests" / "clients"
WORKERS = 2
TRIES = 24
# The fake engine's text names the version; least_f1 accepts the difference from the serving version's text.
NEW_VERSION = """
engine = "fake"
[settings]
fake_text = "fake/NUMBER"
[reference]
least_f1 = 0.5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository: model `fake` with two accepted versions, both served."""
    folder = tmp_path_factory.mktemp("service")
    accept(folder, *(make_fake(folder / "models", number) for number in (1, 2)))
    (folder / "models" / "models.toml").write_text('[fake]\nversions = "all"\n')
    (folder / "page.png").write_bytes(png())
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    variables = {"MODELS": folder / "models", "MODELS_STATE": folder / "state", "MODEL": "fake", "MODELS_POLL_S": "0.2"}
    env = {f"OCRSVC_{name}": str(value) for name, value in variables.items()} | {"OCRSVC_GRPC_BIND": "127.0.0.1:0"}
    with run_server(env, ("--workers", str(WORKERS))) as started:
        yield started


@pytest.fixture
def server(running: Server, folder: Path) -> Server:
    """The server, reset from what earlier clients loaded, unloaded or configured."""
    StateStore(folder / "state").change(lambda state: ModelState(verdicts=state.verdicts))
    return running


def address_of(server: Server, protocol: str) -> str:
    if protocol == "http":
        return server.url.removeprefix("http://")
    return str(re.findall(r"gRPC at: (127\.0\.0\.1:\d+)", server.log)[0])


def run(environment: str, script: str, *arguments: object) -> None:
    """Run a client script, which must succeed."""
    try:
        python = fetched_path(SOURCES[environment])
    except ClientUnavailable as lack:
        pytest.skip(f"{lack}; python tests/fetch_clients.py --most minute fetches it")
    done = subprocess.run(
        [str(python), str(SCRIPTS / script), *map(str, arguments)],
        env=clean_environment({"PYTHONPATH": "", "NO_PROXY": "*", "no_proxy": "*"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all good" in done.stdout


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_lists_loads_and_unloads(server: Server, folder: Path, protocol: str) -> None:
    # The load waits until the new version is proved.
    new = len(list((folder / "models" / "fake").iterdir())) + 1
    make_version(folder / "models", "fake", new, NEW_VERSION.replace("NUMBER", str(new)))
    numbers = range(1, new + 1)
    run("TRITON", "triton_models.py", protocol, address_of(server, protocol), folder / "page.png", *numbers)


def test_tensorflow_servings_client_lists_labels_loads_and_unloads(server: Server, folder: Path) -> None:
    run("MIN_TFS", "tensorflow_models.py", address_of(server, "grpc"), folder / "page.png")


def _post(server: Server, path: str, body: object = None) -> tuple[int, str]:
    """POST over a new connection; returns status and text."""
    response = requests.post(server.url + path, json=body, timeout=20)
    return response.status_code, response.text


def test_loads_and_unloads_reach_every_worker_at_once(server: Server) -> None:
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [as_base64(png())]}

    def statuses() -> set[int]:
        return {_post(server, "/v2/models/fake/infer", {"inputs": [tensor]})[0] for _ in range(TRIES)}

    assert statuses() == {200}
    for _ in range(3):
        assert _post(server, "/v2/repository/models/fake/unload")[0] == 200
        assert statuses() == {404}
        assert _post(server, "/v2/repository/models/fake/load")[0] == 200
        assert statuses() == {200}
    assert _post(server, "/v2/repository/models/fake/unload")[0] == 200
    # Both workers close the model.
    wait_until(lambda: "unloaded" in _post(server, "/v2/repository/index")[1], "fake is closed")
