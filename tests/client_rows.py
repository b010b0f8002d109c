"""How the real clients of each wire format are started; clients/rows.yaml has one for each row of docs/clients.md."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import fetch_clients
import yaml
from fetch_clients import Source
from support import ROOT, clean_environment

# The fake engine's first line is the size of the image.
SIZE: Final = "64x32"
PIPELINE_RPC_PORT: Final = 18091
_LIMIT_S: Final = 60.0
_SCRIPTS: Final = ROOT / "tests" / "clients"


@dataclass(frozen=True, slots=True)
class Place:
    """Where clients run: host:port of the service for HTTP, of one that speaks chineseocr_lite's variant, and for gRPC.

    The folder holds a page under every name that clients look for; of the hard-wired ports these could be had.
    """

    http: str
    poly: str
    grpc: str
    folder: Path
    ports: frozenset[int]

    @property
    def url(self) -> str:
        """Of the service, without a slash at the end."""
        return f"http://{self.http}"


@dataclass(frozen=True, slots=True)
class Client:
    """One client.

    Attributes:
        key: Names its recording, and its test.
        adapter: The format, as OCRSVC_DIALECTS names it.
        name: Of the client, in the table's words.
        source: What is fetched.
        run: Given the place and what was fetched, runs the client, which must end well; what it printed.
        said: What it must have printed.
        answered: What must stand in the answers to its recorded requests.
        refused: How many of the recorded requests are asked in order to be refused.
        port: The one that it has hard-wired.
        also: A second source that it needs.
        repeats: Whether it sends the same whatever is answered, so that a recording can stand in for it.
    """

    key: str
    adapter: str
    name: str
    source: Source
    run: Callable[[Place, Path], str]
    said: tuple[str, ...] = (SIZE,)
    answered: tuple[str, ...] = (SIZE,)
    refused: int = 0
    port: int | None = None
    also: Source | None = None
    repeats: bool = True

    @property
    def sources(self) -> tuple[Source, ...]:
        """What is run, and what that needs."""
        return (self.source,) if self.also is None else (self.source, self.also)


def run(place: Place, command: Sequence[object], env: dict[str, str] | None = None) -> str:
    """Run a client in the folder; it must end well. What it printed."""
    environment = {"PYTHONIOENCODING": "utf-8", "NO_PROXY": "*", "no_proxy": "*", "PYTHONPATH": "", **(env or {})}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=place.folder,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _script(place: Place, client: Path) -> str:
    return run(place, [sys.executable, client])


def _page_as_base64(place: Place) -> str:
    return base64.b64encode((place.folder / "page.png").read_bytes()).decode()


def _rapidocr_curl(place: Place, curl: Path) -> str:
    return run(place, [curl, "-sSF", "image_file=@page.png", f"{place.url}/ocr"])


def _trwebocr_readme(place: Place, readme: Path) -> str:
    snippets = re.findall(r"``` ?python\n(import requests.+?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 2
    here = [re.sub(r"http://[\d.]+:8089", place.url, snippet) for snippet in snippets]
    tell = "\nprint(res.json()['data']['raw_out'])"
    return "".join(run(place, [sys.executable, "-W", "ignore", "-c", snippet + tell]) for snippet in here)


def _chineseocr_lite(place: Place, curl: Path) -> str:
    return run(place, [curl, "-sSF", "file=@page.png", "-F", "compress=960", f"http://{place.poly}/api/tr-run/"])


def _pipeline_http(place: Place, client: Path) -> str:
    return run(place, [sys.executable, client, "--image_dir", "pages"])


def _pipeline_rpc(place: Place, client: Path) -> str:
    python = fetch_clients.PADDLE_SERVING.place()
    return run(place, [python, client, "--image_dir", "pages"], {"PYTHONPATH": str(_SCRIPTS / "stand_ins")})


def _paddlehub_curl(place: Place, curl: Path) -> str:
    sent = json.dumps({"images": [_page_as_base64(place)]})
    command = [curl, "-sSH", "Content-Type:application/json", "-X", "POST", "--data", sent]
    return run(place, [*command, f"{place.url}/predict/ocr_system"])


def _paddlex_snippet(place: Place, python: Path) -> str:
    code = (
        "import base64, requests\n"
        "file = base64.b64encode(open('page.png', 'rb').read()).decode('ascii')\n"
        f"response = requests.post('{place.url}/ocr', json={{'file': file, 'fileType': 1}})\n"
        "assert response.status_code == 200\n"
        "for res in response.json()['result']['ocrResults']:\n"
        "    print(res['prunedResult'])\n"
        "    assert base64.b64decode(res['ocrImage'])[:2] == b'\\xff\\xd8'\n"
    )
    return run(place, [python, "-c", code])


def _mcp(place: Place, python: Path) -> str:
    tool = [python, "-m", "paddleocr_mcp", "--model", "PP-OCRv5", "--ppocr_source", "self_hosted"]
    command = [sys.executable, _SCRIPTS / "mcp_stdio.py", place.folder / "page.png", *tool]
    quiet = {"FASTMCP_CHECK_FOR_UPDATES": "off", "FASTMCP_SHOW_SERVER_BANNER": "false"}
    return run(place, [*command, "--self-hosted-base-url", place.url], quiet)


def _triton(what: str) -> Callable[[Place, Path], str]:
    def with_place(place: Place, python: Path) -> str:
        address = place.http if what == "http" else place.grpc
        return run(place, [python, _SCRIPTS / "triton.py", what, address, "page.png", SIZE])

    return with_place


def _perf_analyzer(*words: str) -> Callable[[Place, Path], str]:
    def with_place(place: Place, program: Path) -> str:
        sent = {"data": [{"image": {"b64": _page_as_base64(place)}}]}
        (place.folder / "input.json").write_text(json.dumps(sent))
        address = place.http if "http" in words else place.grpc
        # Three short windows, which need not agree: this is no measurement.
        few = ["--measurement-interval", "200", "--stability-percentage", "999", "--concurrency-range", "2"]
        what = ["-m", "ocr", "-u", address, *words, "--shape", "image:1", "--input-data", "input.json"]
        command = [program, *what, *few]
        return run(place, command, {"LD_LIBRARY_PATH": fetch_clients.PERF_ANALYZER.libraries()})

    return with_place


def _min_tfs(place: Place, python: Path) -> str:
    return run(place, [python, _SCRIPTS / "min_tfs.py", *place.grpc.split(":"), "page.png", SIZE])


def _rest_curl(place: Place, curl: Path) -> str:
    sent = json.dumps({"instances": [{"b64": _page_as_base64(place)}]})
    asked = [f"{place.url}/v1/models/ocr", f"{place.url}/v1/models/ocr/metadata"]
    read = [curl, "-sSd", sent, "-X", "POST", f"{place.url}/v1/models/ocr:predict"]
    return "".join(run(place, command) for command in ([curl, "-sS", *asked], read))


def _kserve_v1_curl(place: Place, curl: Path) -> str:
    sent = json.dumps({"instances": [{"image": {"b64": _page_as_base64(place)}}]})
    read = [curl, "-sSH", "Content-Type: application/json", "-d", sent, f"{place.url}/v1/models/ocr:predict"]
    return run(place, [curl, "-sS", f"{place.url}/v1/models"]) + run(place, read)


def _umi_manual(place: Place, manual: Path) -> str:
    snippets = re.findall(r"```python\n(.+?)```", manual.read_text(encoding="utf-8"), re.DOTALL)
    asking = next(snippet for snippet in snippets if "get_options" in snippet)
    reading = next(snippet for snippet in snippets if '"base64"' in snippet)
    return "".join(run(place, [sys.executable, "-c", snippet]) for snippet in (asking, reading))


def _ocrspace(place: Place, python: Path) -> str:
    code = (
        "import base64, ocrspace\n"
        f"api = ocrspace.API(endpoint='{place.url}/parse/image')\n"
        "print(api.ocr_file('page.png'))\n"
        "print(api.ocr_file(open('page.png', 'rb')))\n"
        "print(api.ocr_base64('data:image/png;base64,' + base64.b64encode(open('page.png', 'rb').read()).decode()))\n"
        "try:\n    api.ocr_base64('!!!!')\nexcept Exception as error:\n    print('refused:', error)\n"
    )
    return run(place, [python, "-c", code])


def _ocr_space_wrapper(place: Place, module: Path) -> str:
    code = (
        f"const {{ ocrSpace }} = require('{module}');\n"
        f"ocrSpace('page.png', {{ ocrUrl: '{place.url}/parse/image', isOverlayRequired: true }})\n"
        "  .then((answer) => console.log(JSON.stringify(answer)))"
    )
    return run(place, ["node", "-e", code])


def _docling(place: Place, python: Path) -> str:
    return run(place, [python, _SCRIPTS / "docling_client.py", place.url, "page.png", "document.pdf"])


def _open_webui(place: Place, module: Path) -> str:
    return run(place, [sys.executable, _SCRIPTS / "open_webui_loader.py", module, place.url, "document.pdf"])


def _turboocr_curl(place: Place, curl: Path) -> str:
    raw = ["-X", "POST", f"{place.url}/ocr/raw", "--data-binary", "@page.png", "-H", "Content-Type: image/png"]
    sent = json.dumps({"image": _page_as_base64(place)})
    plain = ["-X", "POST", f"{place.url}/ocr", "-H", "Content-Type: application/json", "-d", sent]
    return run(place, [curl, "-sS", *raw]) + run(place, [curl, "-sS", *plain])


def _turboocr_sdk(protocol: str) -> Callable[[Place, Path], str]:
    def call(place: Place, python: Path) -> str:
        where = place.url if protocol == "http" else place.grpc
        return run(place, [python, _SCRIPTS / "turboocr_sdk.py", protocol, where, "page.png", "document.pdf"])

    return call


def _mistralai(part: str) -> Callable[[Place, Path], str]:
    def call(place: Place, python: Path) -> str:
        return run(place, [python, _SCRIPTS / "mistralai_sdk.py", part, place.url])

    return call


def _litellm(place: Place, python: Path) -> str:
    # It asks another host for prices otherwise.
    return run(place, [python, _SCRIPTS / "litellm_ocr.py", place.url], {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})


def _open_webui_mistral(place: Place, loader: Path) -> str:
    command = [fetch_clients.OPEN_WEBUI.place(), _SCRIPTS / "open_webui_mistral.py", loader, place.url]
    return run(place, command, {"PYTHONPATH": str(_SCRIPTS / "stand_ins")})


def _librechat(place: Place, crud: Path) -> str:
    modules = fetch_clients.ESBUILD.place().parent
    return run(place, ["node", _SCRIPTS / "librechat_mistral.js", crud, place.url, modules])


def _azure_sdk(place: Place, python: Path) -> str:
    return run(place, [python, _SCRIPTS / "azure_read_sdk.py", place.url])


def _paperless_remote(place: Place, parser: Path) -> str:
    return run(place, [fetch_clients.AZURE_READ.place(), _SCRIPTS / "paperless_remote.py", parser, place.url])


def _native_curl(place: Place, curl: Path) -> str:
    return run(place, [curl, "-sSF", "file=@page.png", f"{place.url}/v1/ocr"])


def _runner(named: str | list[str]) -> Callable[[Place, Path], str]:
    """What runs a client: a function above, or what one makes of its arguments."""
    name, *arguments = [named] if isinstance(named, str) else named
    function = globals()[f"_{name}"]
    return cast("Callable[[Place, Path], str]", function(*arguments) if arguments else function)


def _client(row: dict[str, Any]) -> Client:
    sources: dict[str, Any] = {name: getattr(fetch_clients, row[name]) for name in ("source", "also") if name in row}
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("said", "answered") if name in row}
    return Client(**(row | sources | lists | {"run": _runner(row["run"])}))


CLIENTS: Final = tuple(map(_client, yaml.safe_load((_SCRIPTS / "rows.yaml").read_text("utf-8"))))
