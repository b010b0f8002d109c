"""The real clients that are run against each wire format, and how each is started: one row of docs/clients.md each."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fetch_clients
from fetch_clients import Environment, Installed, Source
from support import ROOT, clean_environment

from ocrsvc.registry import adapters

# The fake engine's first line is the size of the image.
SIZE: Final = "64x32"
PIPELINE_RPC_PORT: Final = 18091
_LIMIT_S: Final = 60.0
_SCRIPTS: Final = ROOT / "tests" / "clients"


@dataclass(frozen=True, slots=True)
class Place:
    """Where clients run: host:port for HTTP, of a service that speaks chineseocr_lite's variant (`poly`), and for gRPC.

    The folder holds a page under every name that clients look for; `ports` are the hard-wired ones that could be had.
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
    """One client: its key, which names its recording, its format as in OCRSVC_DIALECTS, and its name in the table.

    `run` is given the place and what was fetched, and returns what the client has printed, in which `said` must be.
    `answered` must stand in the answers to its recorded requests, of which so many are `refused`, as they should be.
    `port` is the one that it has hard-wired, `also` a second source that it needs. It `repeats` where it sends the same
    whatever is answered, so that a recording can stand in for it.
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


_TRITON_SAID: Final = ("all good",)
_MEASURED: Final = ("Throughput: ", "Request count: ")
_CURL: Final = fetch_clients.CURL
_PERF: Final[Environment] = fetch_clients.PERF_ANALYZER
_REQUESTS: Final = Installed("requests")
CLIENTS: Final[list[Client]] = []

Run = Callable[[Place, Path], str]


def _client(
    key: str, name: str, source: Source, *, adapter: str = "", hard_wired: bool = False, **more: Any
) -> Callable[[Run], Run]:
    """The row of a client, whose adapter begins its key unless it is named, with what runs it.

    `hard_wired` are those that ask at their adapter's usual port.
    """
    adapter = adapter or key.partition("-")[0]
    more |= {"port": adapters()[adapter].port} if hard_wired else {}

    def note(run: Run) -> Run:
        CLIENTS.append(Client(key, adapter, name, source, run, **more))
        return run

    return note


def _page_as_base64(place: Place) -> str:
    return base64.b64encode((place.folder / "page.png").read_bytes()).decode()


@_client(
    "trwebocr-readme",
    "requests snippets of TrWebOCR's README, with the address replaced",
    fetch_clients.TRWEBOCR_README,
    answered=(SIZE, "raw_out", "data:image/jpeg;base64,"),
)
def _trwebocr_readme(place: Place, readme: Path) -> str:
    snippets = re.findall(r"``` ?python\n(import requests.+?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 2
    here = [re.sub(r"http://[\d.]+:8089", place.url, snippet) for snippet in snippets]
    tell = "\nprint(res.json()['data']['raw_out'])"
    return "".join(run(place, [sys.executable, "-W", "ignore", "-c", snippet + tell]) for snippet in here)


@_client(
    "chineseocr_lite-curl",
    "curl, as chineseocr_lite's page posts (`OCRSVC_TRWEBOCR_BOXES=poly`)",
    _CURL,
    said=(f"1\\u3001 {SIZE}", '"img_detected"'),
    answered=(SIZE, "raw_out"),
    adapter="trwebocr",
)
def _chineseocr_lite(place: Place, curl: Path) -> str:
    return run(place, [curl, "-sSF", "file=@page.png", "-F", "compress=960", f"http://{place.poly}/api/tr-run/"])


def _script(place: Place, client: Path) -> str:
    return run(place, [sys.executable, client])


_client(
    "trwebocr_cpp-test_api",
    "scripts/test_api.py of TrWebOCR.cpp",
    fetch_clients.TRWEBOCR_CPP,
    said=("200", f"{SIZE}|"),
    answered=(f"{SIZE}|",),
    hard_wired=True,
)(_script)
_client(
    "rapidocr_api-demo",
    "demo.py of RapidOCRAPI",
    fetch_clients.RAPIDOCR_DEMO,
    said=(SIZE, "rec_txt"),
    answered=(SIZE, "rec_txt", "dt_boxes"),
    hard_wired=True,
)(_script)


@_client("rapidocr_api-curl", "curl, as in its README", _CURL, said=(SIZE, "rec_txt"))
def _rapidocr_curl(place: Place, curl: Path) -> str:
    return run(place, [curl, "-sSF", "image_file=@page.png", f"{place.url}/ocr"])


@_client(
    "paddlex-mcp",
    "paddleocr_mcp, its tool called over stdio",
    fetch_clients.PADDLEOCR_MCP,
    said=(f"{SIZE}\n", "2 text lines", '"bbox"'),
    answered=(SIZE, "rec_texts", '"errorCode":0'),
)
def _mcp(place: Place, python: Path) -> str:
    tool = [python, "-m", "paddleocr_mcp", "--model", "PP-OCRv5", "--ppocr_source", "self_hosted"]
    command = [sys.executable, _SCRIPTS / "mcp_stdio.py", place.folder / "page.png", *tool]
    quiet = {"FASTMCP_CHECK_FOR_UPDATES": "off", "FASTMCP_SHOW_SERVER_BANNER": "false"}
    return run(place, [*command, "--self-hosted-base-url", place.url], quiet)


@_client("paddlex-requests", "requests snippet, as in its manual", _REQUESTS, said=(SIZE, "rec_texts"))
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


def _triton(what: str) -> Callable[[Place, Path], str]:
    def with_place(place: Place, python: Path) -> str:
        address = place.http if what == "http" else place.grpc
        return run(place, [python, _SCRIPTS / "triton.py", what, address, "page.png", SIZE])

    return with_place


_client(
    "paddlex-triton",
    "tritonclient over gRPC, as PaddleX's client of its high-stability serving uses it",
    fetch_clients.TRITON,
    said=_TRITON_SAID,
    answered=(SIZE, "rec_texts", '"errorCode":0'),
)(_triton("paddlex"))


@_client("paddlehub-curl", "curl, as in the README of its deployment", _CURL, said=(SIZE, '"status":"000"'))
def _paddlehub_curl(place: Place, curl: Path) -> str:
    sent = json.dumps({"images": [_page_as_base64(place)]})
    command = [curl, "-sSH", "Content-Type:application/json", "-X", "POST", "--data", sent]
    return run(place, [*command, f"{place.url}/predict/ocr_system"])


@_client(
    "paddle_serving-http",
    "pipeline_http_client.py of PaddleOCR",
    fetch_clients.PIPELINE_HTTP,
    said=(SIZE, "erro_no:0, err_msg:"),
    answered=(SIZE, '"err_no":0'),
    hard_wired=True,
)
def _pipeline_http(place: Place, client: Path) -> str:
    return run(place, [sys.executable, client, "--image_dir", "pages"])


@_client(
    "paddle_serving-grpc",
    "pipeline_rpc_client.py of PaddleOCR, with paddle-serving-server 0.9.0, over gRPC",
    fetch_clients.PIPELINE_RPC,
    said=(SIZE, 'key: "result"'),
    port=PIPELINE_RPC_PORT,
    also=fetch_clients.PADDLE_SERVING,
)
def _pipeline_rpc(place: Place, client: Path) -> str:
    python = fetch_clients.PADDLE_SERVING.place()
    return run(place, [python, client, "--image_dir", "pages"], {"PYTHONPATH": str(_SCRIPTS / "stand_ins")})


# The size of the image in the manual.
@_client(
    "umi_ocr-manual",
    "Python snippets of its manual (docs/http/api_ocr.md)",
    fetch_clients.UMI_OCR_MANUAL,
    said=("ocr.language", "optionsList", "46x23"),
    answered=("ocr.language", "optionsList", SIZE),
    hard_wired=True,
)
def _umi_manual(place: Place, manual: Path) -> str:
    snippets = re.findall(r"```python\n(.+?)```", manual.read_text(encoding="utf-8"), re.DOTALL)
    asking = next(snippet for snippet in snippets if "get_options" in snippet)
    reading = next(snippet for snippet in snippets if '"base64"' in snippet)
    return "".join(run(place, [sys.executable, "-c", snippet]) for snippet in (asking, reading))


_client(
    "umi_ocr-documents",
    "docs/http/api_doc_demo.py",
    fetch_clients.UMI_DOC_DEMO,
    said=("OCR task completed.", "Target file downloaded successfully", "Process completed."),
    repeats=False,
    hard_wired=True,
)(_script)


@_client(
    "ocr_space-python",
    "ocrspace of PyPI",
    fetch_clients.OCRSPACE,
    said=(SIZE, "refused:"),
    answered=(SIZE, "ParsedResults", '"IsErroredOnProcessing":true'),
)
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


@_client(
    "ocr_space-node",
    "ocr-space-api-wrapper of npm",
    fetch_clients.OCR_SPACE_WRAPPER,
    said=(SIZE, '"HasOverlay":true'),
    answered=(SIZE, '"HasOverlay":true'),
    also=fetch_clients.NODE,
)
def _ocr_space_wrapper(place: Place, module: Path) -> str:
    code = (
        f"const {{ ocrSpace }} = require('{module}');\n"
        f"ocrSpace('page.png', {{ ocrUrl: '{place.url}/parse/image', isOverlayRequired: true }})\n"
        "  .then((answer) => console.log(JSON.stringify(answer)))"
    )
    return run(place, ["node", "-e", code])


@_client("turboocr-curl", "curl, as in its README", _CURL, said=(SIZE, "bounding_box"))
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


_client(
    "turboocr-sdk",
    "turboocr, its Python SDK: all twelve calls",
    fetch_clients.TURBOOCR,
    said=(
        *("health: True", "capabilities: True", f"image: {SIZE} {SIZE}", f"base64: {SIZE}", f"pixels: {SIZE}"),
        *("batch: [None, 'IMAGE_DECODE_FAILED']", f"pdf: {SIZE} 88 ocr", "searchable: b'%PDF-' b'%PDF-'"),
        *("stream: ['meta', 'page', 'end']", "to_markdown: True True", f"page_markdown: {SIZE}"),
        *("pdf_markdown: <!-- page 1 --> 1", "refused: IMAGE_DECODE_FAILED"),
    ),
    repeats=False,
)(_turboocr_sdk("http"))
_client(
    "turboocr-sdk-grpc",
    "turboocr's GrpcClient, by the stub of its proto: all that it has",
    fetch_clients.TURBOOCR,
    said=(
        *("health: True", f"image: {SIZE}", f"pixels: {SIZE}", "batch: 2", f"pdf: {SIZE} 88"),
        *("searchable: b'%PDF-'", "refused: IMAGE_DECODE_FAILED"),
    ),
    repeats=False,
)(_turboocr_sdk("grpc"))
_client(
    "kserve_v2-triton-http",
    "tritonclient over HTTP",
    fetch_clients.TRITON,
    said=_TRITON_SAID,
    answered=(SIZE, "binary_data_size"),
    refused=1,
)(_triton("http"))
_client(
    "kserve_v2-triton-grpc", "tritonclient over gRPC, with a stream", fetch_clients.TRITON, said=_TRITON_SAID, refused=1
)(_triton("grpc"))


def _perf_analyzer(*words: str) -> Callable[[Place, Path], str]:
    def with_place(place: Place, program: Path) -> str:
        sent = {"data": [{"image": {"b64": _page_as_base64(place)}}]}
        (place.folder / "input.json").write_text(json.dumps(sent))
        address = place.http if "http" in words else place.grpc
        # Three short windows, which need not agree: this is no measurement.
        few = ["--measurement-interval", "200", "--stability-percentage", "999", "--concurrency-range", "2"]
        command = [
            program,
            "-m",
            "ocr",
            "-u",
            address,
            *words,
            "--shape",
            "image:1",
            "--input-data",
            "input.json",
            *few,
        ]
        return run(place, command, {"LD_LIBRARY_PATH": fetch_clients.PERF_ANALYZER.libraries()})

    return with_place


_client(
    "kserve_v2-perf-http",
    "perf_analyzer over HTTP",
    _PERF,
    said=_MEASURED,
    answered=(SIZE, "inference_stats", "binary_data_size"),
)(_perf_analyzer("-i", "http"))
_client("kserve_v2-perf-grpc", "perf_analyzer over gRPC", _PERF, said=_MEASURED)(_perf_analyzer("-i", "grpc"))
_client("kserve_v2-perf-stream", "perf_analyzer over gRPC, with streams", _PERF, said=_MEASURED)(
    _perf_analyzer("-i", "grpc", "--streaming")
)


@_client("kserve_v1-curl", "curl, as in its manual", _CURL, said=(SIZE, '"models"', '"predictions"'))
def _kserve_v1_curl(place: Place, curl: Path) -> str:
    sent = json.dumps({"instances": [{"image": {"b64": _page_as_base64(place)}}]})
    read = [curl, "-sSH", "Content-Type: application/json", "-d", sent, f"{place.url}/v1/models/ocr:predict"]
    return run(place, [curl, "-sS", f"{place.url}/v1/models"]) + run(place, read)


@_client(
    "tfserving-curl",
    "curl, as in its manual",
    _CURL,
    said=(SIZE, "model_version_status", "signature_def", '"predictions"'),
    answered=(SIZE, "model_version_status", "signature_def", '"predictions"'),
)
def _rest_curl(place: Place, curl: Path) -> str:
    sent = json.dumps({"instances": [{"b64": _page_as_base64(place)}]})
    asked = [f"{place.url}/v1/models/ocr", f"{place.url}/v1/models/ocr/metadata"]
    read = [curl, "-sSd", sent, "-X", "POST", f"{place.url}/v1/models/ocr:predict"]
    return "".join(run(place, command) for command in ([curl, "-sS", *asked], read))


@_client(
    "tfserving-min_tfs",
    "min-tfs-client over gRPC (the image as base64: it sends no bytes)",
    fetch_clients.MIN_TFS,
    said=("all good",),
)
def _min_tfs(place: Place, python: Path) -> str:
    return run(place, [python, _SCRIPTS / "min_tfs.py", *place.grpc.split(":"), "page.png", SIZE])


_client(
    "tfserving-perf",
    "perf_analyzer over gRPC (sends empty images, and gets empty pages)",
    _PERF,
    said=_MEASURED,
    answered=("serving_default", "texts"),
)(_perf_analyzer("-i", "grpc", "--service-kind", "tfserving"))


def _mistralai(part: str) -> Callable[[Place, Path], str]:
    def call(place: Place, python: Path) -> str:
        return run(place, [python, _SCRIPTS / "mistralai_sdk.py", part, place.url])

    return call


_client(
    "mistral-sdk-ocr",
    "mistralai: ocr.process with data URLs",
    fetch_clients.MISTRALAI,
    said=(SIZE, "word_confidence_scores", "refused: 400"),
    answered=(SIZE, '"usage_info"', "word_confidence_scores"),
    refused=1,
)(_mistralai("ocr"))
_client(
    "mistral-sdk-files",
    "mistralai: files.upload, retrieve, list, download, get_signed_url, delete, and ocr.process of a file",
    fetch_clients.MISTRALAI,
    said=(SIZE, "deleted: True"),
    repeats=False,
)(_mistralai("files"))


@_client(
    "mistral-litellm",
    "litellm.ocr with a document_url, an image_url and a file",
    fetch_clients.LITELLM,
    said=(SIZE, "pages_processed=1", "refused:"),
    answered=(SIZE, '"usage_info"'),
    refused=1,
)
def _litellm(place: Place, python: Path) -> str:
    # It asks another host for prices otherwise.
    return run(place, [python, _SCRIPTS / "litellm_ocr.py", place.url], {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})


@_client(
    "mistral-open_webui",
    "Open WebUI's MistralLoader: upload, signed URL, OCR, delete; and a data URL",
    fetch_clients.OPEN_WEBUI_MISTRAL,
    said=(SIZE, "'total_pages': 1", "'deleted': True"),
    also=fetch_clients.OPEN_WEBUI,
    repeats=False,
)
def _open_webui_mistral(place: Place, loader: Path) -> str:
    command = [fetch_clients.OPEN_WEBUI.place(), _SCRIPTS / "open_webui_mistral.py", loader, place.url]
    return run(place, command, {"PYTHONPATH": str(_SCRIPTS / "stand_ins")})


# It asks after tasks, whose names nobody knows beforehand.
@_client(
    "docling-client",
    "DoclingServiceClient of docling (health, version, convert, convert_all, submit of an archive, poll)",
    fetch_clients.DOCLING,
    said=(
        "ok ocrsvc",
        f".png: {SIZE}",
        f".pdf: {SIZE}",
        f"all: ['{SIZE}', '{SIZE}', '{SIZE}']",
        "zip: ['page.html', 'page.md', 'page.txt']",
        "job: success, then success",
        "refused: Task submission failed. (status=422",
    ),
    repeats=False,
)
def _docling(place: Place, python: Path) -> str:
    return run(place, [python, _SCRIPTS / "docling_client.py", place.url, "page.png", "document.pdf"])


@_client(
    "docling-open_webui",
    "DoclingLoader of Open WebUI",
    fetch_clients.OPEN_WEBUI_LOADERS,
    said=(SIZE, "refused: Error calling Docling"),
    answered=(SIZE, "md_content", "DoclingDocument"),
    refused=1,
)
def _open_webui(place: Place, module: Path) -> str:
    return run(place, [sys.executable, _SCRIPTS / "open_webui_loader.py", module, place.url, "document.pdf"])


@_client(
    "mistral-librechat",
    "LibreChat's uploadMistralOCR (upload, signed URL, OCR, delete) and uploadAzureMistralOCR (a data URL)",
    fetch_clients.LIBRECHAT_MISTRAL,
    also=fetch_clients.ESBUILD,
    repeats=False,
)
def _librechat(place: Place, crud: Path) -> str:
    modules = fetch_clients.ESBUILD.place().parent
    return run(place, ["node", _SCRIPTS / "librechat_mistral.js", crud, place.url, modules])


@_client(
    "azure_read-sdk",
    "azure-ai-documentintelligence: begin_analyze_document, get_analyze_result_pdf, delete_analyze_result",
    fetch_clients.AZURE_READ,
    said=(SIZE, "b'%PDF-'", "gone: NotFound", "markdown inch", "refused: 415"),
    repeats=False,
)
def _azure_sdk(place: Place, python: Path) -> str:
    return run(place, [python, _SCRIPTS / "azure_read_sdk.py", place.url])


@_client(
    "azure_read-paperless",
    "paperless-ngx's remote parser, engine azureai",
    fetch_clients.PAPERLESS_REMOTE,
    said=(f"{SIZE}\n", "b'%PDF-'"),
    also=fetch_clients.AZURE_READ,
    repeats=False,
)
def _paperless_remote(place: Place, parser: Path) -> str:
    return run(place, [fetch_clients.AZURE_READ.place(), _SCRIPTS / "paperless_remote.py", parser, place.url])


@_client("native-curl", "curl", _CURL, said=(SIZE, '"engine"'))
def _native_curl(place: Place, curl: Path) -> str:
    return run(place, [curl, "-sSF", "file=@page.png", f"{place.url}/v1/ocr"])
