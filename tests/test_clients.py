"""Do the formats' own clients, unmodified, read a page here?

Each runs in a process of its own against a real server over the fake engine, and must print what that engine reads.
Clients from package indexes run where they are installed. Those from public repositories are no part of this one: they
are taken from the folder that OCRSVC_CLIENTS names (docs/clients.md says what belongs there). `python
benchmarks/clients.py` runs this and writes the table.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT, Server, clean_environment, run_server
from web_support import picture

from ocrsvc.doors import USUAL_PORTS

FOLDER = Path(os.environ.get("OCRSVC_CLIENTS", ROOT.parent / "shared" / "clients"))
# Clients that cannot be told another port look for these.
HARD_WIRED = ("rapidocr_api", "trwebocr", "trwebocr_cpp", "paddle_serving", "umi_ocr")
SIZE = "64x32"
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where clients run: the server's address, and a folder with a page under every name that they look for."""

    url: str
    folder: Path
    ports: frozenset[int]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("client")
    for name in ("page.png", "zh-dream.png", "img1.png", "tests/test_files/ch_en_num.jpg", "pages/page.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture())
    free = [name for name in HARD_WIRED if _is_free(USUAL_PORTS[name])]
    binds = [part for name in free for part in ("-b", f"127.0.0.1:{USUAL_PORTS[name]}")]
    with ExitStack() as stack:
        server: Server = stack.enter_context(run_server({"OCRSVC_USUAL_PORTS": ",".join(free)}, binds))
        ports = frozenset(port for name in free if (port := USUAL_PORTS[name]))
        yield Place(_main_url(server, ports), folder, ports)


def _main_url(server: Server, ports: frozenset[int]) -> str:
    urls: list[str] = re.findall(r"http://127\.0\.0\.1:\d+", server.log)
    return next(url for url in urls if int(url.rpartition(":")[2]) not in ports)


def _is_free(port: int | None) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError:
            return False
        return True


def run(place: Place, command: Sequence[str | Path], said: Sequence[str] = (SIZE,)) -> None:
    """Run a client in the folder; it must end well and print what was read."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=place.folder,
        env=clean_environment({"PYTHONIOENCODING": "utf-8", "NO_PROXY": "*", "no_proxy": "*"}),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in said:
        assert text in done.stdout, done.stdout + done.stderr


def need_port(place: Place, dialect: str) -> None:
    if USUAL_PORTS[dialect] not in place.ports:
        pytest.skip(f"port {USUAL_PORTS[dialect]}, which this client has hard-wired, is taken")


def need_file(name: str) -> Path:
    if not (FOLDER / name).exists():
        pytest.skip(f"not at hand: {name} under {FOLDER} (OCRSVC_CLIENTS)")
    return FOLDER / name


def need_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


# Each name is a row of docs/clients.md: the format, two underlines, the client.
def test_rapidocr_api__demo_py_of_RapidOCRAPI(place: Place) -> None:  # noqa: N802  the name is the table's row
    need_port(place, "rapidocr_api")
    run(place, [sys.executable, need_file("RapidOCRAPI/demo.py")], (SIZE, "rec_txt"))


def test_rapidocr_api__curl_as_in_its_readme(place: Place) -> None:
    run(place, [need_program("curl"), "-sSF", "image_file=@page.png", f"{place.url}/ocr"], (SIZE, "rec_txt"))


def test_trwebocr_cpp__test_api_py_of_TrWebOCR_cpp(place: Place) -> None:  # noqa: N802
    need_port(place, "trwebocr_cpp")
    run(place, [sys.executable, need_file("TrWebOCR.cpp/scripts/test_api.py")], ("200", f"{SIZE}|"))


def test_trwebocr__requests_snippets_of_its_readme_with_the_address_replaced(place: Place) -> None:
    readme = need_file("TrWebOCR/README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"``` ?python\n(import requests.+?)```", readme, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        here = re.sub(r"http://[\d.]+:8089", place.url, snippet)
        run(place, [sys.executable, "-W", "ignore", "-c", here + "\nprint(res.json()['data']['raw_out'])"])


def test_paddle_serving__pipeline_http_client_py_of_PaddleOCR(place: Place) -> None:  # noqa: N802
    need_port(place, "paddle_serving")
    client = need_file("PaddleOCR/deploy/pdserving/pipeline_http_client.py")
    run(place, [sys.executable, client, "--image_dir", "pages"], (SIZE, "erro_no:0, err_msg:"))


def test_paddlehub__curl_as_in_the_readme_of_its_deployment(place: Place) -> None:
    sent = json.dumps({"images": [_page_as_base64(place)]})
    command = [need_program("curl"), "-sSH", "Content-Type:application/json", "-X", "POST", "--data", sent]
    run(place, [*command, f"{place.url}/predict/ocr_system"], (SIZE, '"status":"000"'))


def test_paddlex__requests_snippet_as_in_its_documentation(place: Place) -> None:
    code = (
        "import base64, requests\n"
        "file = base64.b64encode(open('page.png', 'rb').read()).decode('ascii')\n"
        f"response = requests.post('{place.url}/ocr', json={{'file': file, 'fileType': 1}})\n"
        "assert response.status_code == 200\n"
        "for res in response.json()['result']['ocrResults']:\n"
        "    print(res['prunedResult'])\n"
        "    assert base64.b64decode(res['ocrImage'])[:2] == b'\\xff\\xd8'\n"
    )
    run(place, [sys.executable, "-c", code], (SIZE, "rec_texts"))


def test_umi_ocr__python_snippets_of_its_api_ocr_md(place: Place) -> None:
    need_port(place, "umi_ocr")
    manual = need_file("Umi-OCR/docs/http/api_ocr.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.+?)```", manual, re.DOTALL)
    asking = [snippet for snippet in snippets if "get_options" in snippet]
    reading = [snippet for snippet in snippets if '"base64"' in snippet]
    assert asking
    assert reading
    run(place, [sys.executable, "-c", asking[0]], ("ocr.language", "optionsList"))
    run(place, [sys.executable, "-c", reading[0]], ("46x23",))


def test_ocr_space__ocrspace_of_PyPI(place: Place) -> None:  # noqa: N802
    if importlib.util.find_spec("ocrspace") is None:
        pytest.skip("the package ocrspace is not installed")
    code = (
        "import base64, ocrspace\n"
        f"api = ocrspace.API(endpoint='{place.url}/parse/image')\n"
        "print(api.ocr_file('page.png'))\n"
        "print(api.ocr_file(open('page.png', 'rb')))\n"
        "print(api.ocr_base64('data:image/png;base64,' + base64.b64encode(open('page.png', 'rb').read()).decode()))\n"
        "try:\n    api.ocr_base64('!!!!')\nexcept Exception as error:\n    print('refused:', error)\n"
    )
    run(place, [sys.executable, "-c", code], (SIZE, "refused:"))


def test_ocr_space__ocr_space_api_wrapper_of_npm(place: Place) -> None:
    module = need_file("node_modules/ocr-space-api-wrapper")
    code = (
        f"const {{ ocrSpace }} = require('{module}');\n"
        f"ocrSpace('page.png', {{ ocrUrl: '{place.url}/parse/image', isOverlayRequired: true }})\n"
        "  .then((answer) => console.log(JSON.stringify(answer)))"
    )
    run(place, [need_program("node"), "-e", code], (SIZE, '"HasOverlay":true'))


def test_turboocr__curl_as_in_its_readme(place: Place) -> None:
    curl = need_program("curl")
    raw = [curl, "-sSX", "POST", f"{place.url}/ocr/raw", "--data-binary", "@page.png", "-H", "Content-Type: image/png"]
    run(place, raw, (SIZE, "bounding_box"))
    sent = json.dumps({"image": _page_as_base64(place)})
    run(place, [curl, "-sSX", "POST", f"{place.url}/ocr", "-H", "Content-Type: application/json", "-d", sent])


def test_native__curl(place: Place) -> None:
    run(place, [need_program("curl"), "-sSF", "file=@page.png", f"{place.url}/v1/ocr"], (SIZE, '"engine"'))


def _page_as_base64(place: Place) -> str:
    return base64.b64encode((place.folder / "page.png").read_bytes()).decode()
