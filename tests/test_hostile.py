"""Hostile requests cost linear time and do not affect other requests; benchmarks/hostile.py sends the whole table."""

import gzip
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest
import requests
from flask.testing import FlaskClient
from grpc_support import MESSAGES
from hostile_client import send
from hostile_files import FILES, jpeg
from hostile_requests import ENDPOINTS, FORM_TYPE, Endpoint, table
from hostile_texts import FORMS, HEADER_VALUES, JSON_VALUES, MULTIPARTS, PARSED_TEXTS, QUERIES, TEXTS, Make, repeated
from pydantic.alias_generators import to_camel
from support import Server, repeating, reserved_port, run_server

from ocrsvc.adapters.kserve import v2_http
from ocrsvc.adapters.ocr_space import http as ocr_space_http
from ocrsvc.adapters.paddle_serving import http as paddle_serving_http
from ocrsvc.adapters.paddlex.members import Members, parse_members
from ocrsvc.adapters.rapidocr_api import http as rapidocr_api_http
from ocrsvc.adapters.tfserving.http import check_signature
from ocrsvc.adapters.umi_ocr import answers as umi_ocr
from ocrsvc.adapters.umi_ocr.answers import DocumentOptions, ImageOptions
from ocrsvc.connections.policy import MAX_URL_CHARS, parse_url
from ocrsvc.errors import OcrsvcError
from ocrsvc.grpc_server.messages import escaped, parse, timeout_s
from ocrsvc.grpc_server.method import CallFailed
from ocrsvc.http.base64text import decode_base64, unquote_plus
from ocrsvc.http.field_values import parse_decimal
from ocrsvc.http.options import read_options
from ocrsvc.http.parsed_body import Content, is_image, parse_body, split_parts
from ocrsvc.imaging.codecs.decode import PixelLimits, open_encoded_image
from ocrsvc.imaging.document import is_pdf, may_have_pages, open_document
from ocrsvc.imaging.page_ranges import parse_ranges
from ocrsvc.results import Line, Page
from ocrsvc.serving.decompression import Damaged, decompress
from ocrsvc.serving.memory_budget import unlimited

Run = Callable[[bytes], object]

MB: Final = 1 << 20
NOMINAL_S: Final = 0.05
# Processor time; the margin is for other programs on the machine.
MAX_S: Final = 5 * NOMINAL_S
MAX_RATIO: Final = 3.5
# Shorter times depend on the clock's resolution and on caches.
_NOTABLE_S: Final = 0.01
# For a health check during a hostile request, which may be cut off only after 10 s; MAX_S limits its cost.
_HEALTHY_S: Final = 5.0
_LIMITS: Final = PixelLimits(50_000_000)


def spent_s(run: Run, data: bytes, times: int = 1) -> float:
    """Return the processor time of the fastest of some runs; refusing the data counts as a run."""
    best_s = float("inf")
    for _ in range(times):
        began_s = time.process_time()
        with suppress(OcrsvcError, CallFailed, Damaged, ValueError):
            run(data)
        best_s = min(best_s, time.process_time() - began_s)
    return best_s


def complaints(run: Run, make: Make, most: int = MB) -> Iterator[str]:
    """Yield a complaint if a parser's time for texts up to a size is too long or not linear; small texts come first."""
    for size in (most >> 6, most >> 3, most):
        if (took_s := spent_s(run, make(size))) > MAX_S and (took_s := spent_s(run, make(size), 5)) > MAX_S:
            yield f"{size} bytes take {took_s * 1000:.0f} ms"
            return
    if took_s > _NOTABLE_S:
        # Retries exclude a busy machine: a parser that is not linear fails all of them.
        for tries in (1, 2, 3):
            once_s, twice_s = (spent_s(run, make(times * most), tries) for times in (1, 2))
            if twice_s <= MAX_RATIO * max(once_s, _NOTABLE_S):
                break
        else:
            yield f"{once_s * 1000:.0f} ms for {most} bytes, {twice_s * 1000:.0f} ms for twice as many"


def all_complaints(runs: dict[str, Run], texts: dict[str, Make], most: int = MB) -> list[str]:
    return [
        f"{parser} of {text}: {complaint}"
        for parser, run in runs.items()
        for text, make in texts.items()
        for complaint in complaints(run, make, most)
    ]


def _in_body(before: bytes, content_type: str, after: bytes = b"") -> Run:
    return lambda data: parse_body(before + data + after, content_type, (), unlimited(), math.inf).images(
        (), ("image",)
    )


def _parse_foreign_options(data: bytes) -> None:
    word = data.decode("utf-8", "replace")
    names = ("language", "OCREngine", "isCreateSearchablePdf", "detectOrientation", "use_det", "use_cls")
    sent = Content(fields=tuple((name, data) for name in names))
    calls: list[Callable[[], object]] = [
        lambda: ocr_space_http.read_options(sent, has_models=True),
        lambda: rapidocr_api_http._options(sent),
        lambda: paddle_serving_http.to_lists(Content(fields=(("key", [word]), ("value", [word])))),
        *(
            partial(DocumentOptions.from_values, {str(one.alias): word})
            for one in DocumentOptions.model_fields.values()
        ),
        *(partial(parse_members, {"file": "QUJD", to_camel(name): word}, Members) for name in Members.model_fields),
        partial(check_signature, word),
    ]
    for call in calls:
        with suppress(OcrsvcError, ValueError):
            call()


_KSERVE_HEAD: Final = (
    b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[64],"parameters":{"binary_data_size":%d}}]}'
)
PARSERS: Final[dict[str, Run]] = {
    "decode_base64": decode_base64,
    "unquote_plus": unquote_plus,
    "urlencoded form": _in_body(b"image=", FORM_TYPE),
    "JSON text": _in_body(b'{"image":"', "application/json", b'"}'),
    "multipart part": _in_body(
        b"--x\r\nContent-Disposition: form-data; name=image\r\n\r\n",
        "multipart/form-data; boundary=x",
        b"\r\n--x--\r\n",
    ),
    "KServe v2 raw": lambda data: v2_http._parse_request(
        _KSERVE_HEAD % len(data) + data, str(len(_KSERVE_HEAD % len(data))), unlimited()
    ),
    "gzip": lambda data: decompress(gzip.compress(data, 1), 31, 1 << 30),
    "no gzip": lambda data: decompress(data, 31, 1 << 30),
    "options of other formats": _parse_foreign_options,
    "decode_base64 of str": lambda data: decode_base64(data.decode("latin-1")),
    "parse_ranges": lambda data: parse_ranges(data.decode("latin-1")),
    "parse_decimal": lambda data: parse_decimal(data.decode("latin-1")),
    "is_image": is_image,
    "is_pdf": is_pdf,
    "may_have_pages": may_have_pages,
    "open_picture": lambda data: open_encoded_image(data, _LIMITS),
    "parse_url": lambda data: parse_url(data[-MAX_URL_CHARS:].decode("latin-1")),
    "parse_url whole": lambda data: parse_url(data.decode("latin-1")),
    "grpc-timeout": lambda data: timeout_s(data.decode("latin-1")),
    "grpc-message": lambda data: escaped(data.decode("latin-1")),
    **{
        f"option {name}": lambda data, name=name: read_options([(name, data)])  # type: ignore[misc]  # bound at once
        for name in ("rotate", "max_side", "min_confidence", "pages", "lines", "format", "unknown")
    },
}


@pytest.mark.parametrize("parser", PARSERS)
def test_a_megabyte_of_hostile_text_costs_a_parser_linear_time(parser: str) -> None:
    assert all_complaints({parser: PARSERS[parser]}, {**TEXTS, **QUERIES, **PARSED_TEXTS}) == []


@pytest.mark.parametrize("kind", MULTIPARTS)
def test_a_megabyte_of_a_hostile_multipart_body_costs_linear_time(kind: str) -> None:
    content_type = MULTIPARTS[kind](100)[0]
    runs: dict[str, Run] = {"split_parts": lambda body: split_parts(body, content_type)}
    assert all_complaints(runs, {kind: lambda size: MULTIPARTS[kind](size)[1]}) == []


INFER: Final = "inference.ModelInferRequest"
MESSAGE_TEXTS: Final[dict[str, tuple[str, Make]]] = {
    "empty fields": (INFER, partial(repeated, b"\x2a\x00")),
    "numbers": (INFER, lambda size: b"\x2a\xff\xff\x7f\x1a\xff\xff\x7f" + b"\x01" * size),
    "long numbers": (INFER, lambda size: b"\x78" + b"\xff" * 9 + b"\x01" + b"\xff" * size),
    "groups": (INFER, partial(repeated, b"\x7b")),
    "parameters": (INFER, partial(repeated, b"\x22\x02\x0a\x00")),
    "keys": ("baidu.paddle_serving.pipeline_serving.Request", partial(repeated, b"\x12\x00")),
    "dimensions": ("tensorflow.serving.PredictRequest", partial(repeated, b"\x12\x02\x12\x00")),
}


@pytest.mark.parametrize("kind", MESSAGE_TEXTS)
def test_a_megabyte_of_a_hostile_grpc_message_costs_linear_time(kind: str) -> None:
    name, make = MESSAGE_TEXTS[kind]
    runs: dict[str, Run] = {"parse": lambda data: parse(MESSAGES[name], data, unlimited())}
    assert all_complaints(runs, {kind: make}) == []


MAGICS: Final = {
    "jpeg": jpeg()[:2],
    "png": b"\x89PNG\r\n\x1a\n",
    "webp": b"RIFF\xff\xff\xff\x7fWEBP",
    "gif": b"GIF89a\x01\0\x01\0\0\0\0",
    "tiff": b"II*\0\x08\0\0\0",
    "big tiff": b"MM\0+\0\x08\0\0\0\0\0\0\0\x10",
    "bmp": b"BM" + bytes(12) + b"\x28\0\0\0",
    "pnm": b"P5 ",
    "pdf": b"%PDF-1.7\n",
}
PIECES: Final = (
    *(b"\0", b"\xff", b" ", b"1", b"#\n", b"\x2c", b"obj<<", b"\x21\xfe\x01a\0", b"\xff\xfe\0\2", b"\xff\xda\0\2"),
    *(b"\0\0\0\0tEXt\0\0\0\0", b"VP8X\0\0\0\0", b"\1\0\0\1\3\0\1\0\0\0\1\0\0\0\x08\0\0\0"),
)


@pytest.mark.parametrize("name", MAGICS)
def test_a_megabyte_after_the_magic_bytes_of_a_format_costs_linear_time_to_open(name: str) -> None:
    texts: dict[str, Make] = {repr(piece): partial(_after, MAGICS[name], piece) for piece in PIECES}

    def open_pages(data: bytes) -> None:
        # A resolution of 0 skips PDFs: another process draws them.
        open_document(data, _LIMITS, 0, lambda *_: None, lambda *_: None).close()

    assert all_complaints({"open_document": open_pages}, texts) == []


def _after(magic: bytes, piece: bytes, size: int) -> bytes:
    return magic + repeated(piece, size)


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if file.amount == 60_000_000])
def test_a_megabyte_of_a_hostile_picture_costs_linear_time_to_open(name: str) -> None:
    assert all_complaints({"open_picture": PARSERS["open_picture"]}, {name: FILES[name].make}) == []


def _post(client: FlaskClient, endpoint: Endpoint, body: bytes) -> None:
    headers = [line.decode().split(": ") for line in endpoint.fields]
    answer = client.post(endpoint.path, data=body, content_type=endpoint.content_type, headers=headers)
    assert answer.status_code != 500


_JSON_ENDPOINTS: Final = [endpoint for endpoint in ENDPOINTS if endpoint.takes == "json"]


@pytest.mark.parametrize("endpoint", _JSON_ENDPOINTS, ids=lambda one: f"{one.format}-{one.wrap(b'')[:40]!r}")
def test_a_megabyte_of_hostile_json_costs_a_format_linear_time(client: FlaskClient, endpoint: Endpoint) -> None:
    values: dict[str, Make] = {f"json {name}": partial(_wrapped, endpoint, make) for name, make in JSON_VALUES.items()}
    if endpoint is next(one for one in _JSON_ENDPOINTS if one.path == endpoint.path):
        values |= {f"body {name}": make for name, make in JSON_VALUES.items()}
    assert all_complaints({endpoint.path: partial(_post, client, endpoint)}, values) == []


# RapidOCR's path is shared, so its body is parsed before the format is known.
@pytest.mark.parametrize("format_name", ["native", "rapidocr_api"])
def test_a_megabyte_of_a_hostile_form_costs_a_format_linear_time(client: FlaskClient, format_name: str) -> None:
    endpoint = next(one for one in ENDPOINTS if one.format == format_name and one.takes == "form")
    texts = {f"text {name}": partial(_wrapped, endpoint, make) for name, make in TEXTS.items()}
    whole = {f"form {name}": make for name, make in FORMS.items()}
    assert all_complaints({endpoint.path: partial(_post, client, endpoint)}, texts | whole) == []


def _wrapped(endpoint: Endpoint, make: Make, size: int) -> bytes:
    return endpoint.wrap(make(size))


def test_the_longest_headers_and_queries_cost_linear_time(client: FlaskClient) -> None:
    """gunicorn accepts header fields of up to 8 kB, and request lines of up to 4 kB."""

    def ask(name: str, value: bytes) -> None:
        assert client.post("/v1/ocr", data=b"x", headers=[(name, value.decode("latin-1"))]).status_code != 500

    def query(value: bytes) -> None:
        assert client.post("/v1/ocr", data=b"x", query_string=value.decode("latin-1")).status_code != 500

    found = [
        complaint
        for name, makes in HEADER_VALUES.items()
        for complaint in all_complaints({name: partial(ask, name)}, dict(makes), 1 << 13)
    ]
    assert found + all_complaints({"query": query}, dict(QUERIES), 1 << 12) == []


def test_accept_headers_are_truncated(client: FlaskClient) -> None:
    headers = {"Accept": "a/b," * 16_000 + "text/html", "Accept-Encoding": "a," * 30_000}
    for path in ("/", "/v1/ocr", "/healthz"):
        assert spent_s(lambda _, path=path: client.get(path, headers=headers), b"", 3) < MAX_S  # type: ignore[misc]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


KSERVE_REQUEST: Final[dict[str, object]] = {
    "inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["QUJD"]}]
}
ODD: Final[dict[str, tuple[str, object]]] = {
    "a deep list for an option": ("/v1/ocr", {"image": "QUJD", "rotate": nested(300)}),
    "a list with a long text for an option": ("/v1/ocr", {"image": "QUJD", "rotate": ["A" * MB]}),
    "a number of many digits": ("/ocr", {"file": "QUJD", "textDetThresh": "9" * MB}),
    "a deep id": ("/v2/models/ocr/infer", KSERVE_REQUEST | {"id": nested(300)}),
    "a long id": ("/v2/models/ocr/infer", KSERVE_REQUEST | {"id": "A" * MB}),
    "a deep signature": ("/v1/models/ocr:predict", {"signature_name": nested(300), "instances": ["QUJD"]}),
    "a deep area": ("/api/ocr", {"base64": "QUJD", "options": {"tbpu.ignoreArea": nested(300)}}),
}


@pytest.mark.parametrize("case", ODD)
def test_malformed_values_get_short_client_errors(client: FlaskClient, case: str) -> None:
    path, sent = ODD[case]
    response = client.post(path, json=sent)
    # Umi-OCR reports errors with status 200.
    assert response.status_code in ({200} if path == "/api/ocr" else {400, 422})
    assert len(response.data) < 2000


def test_many_ignored_areas_cost_little() -> None:
    box = ((0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0))
    page = Page(100, 100, 0, (Line("a", 0.9, box),) * 500)
    areas = [[[1, 1], [8, 8]]] * 2500

    def codes() -> list[object]:
        asked = ([*areas], [*areas, [[0, 0], [9, 9]]])
        made = [umi_ocr.to_answer(page, ImageOptions.from_values({"tbpu.ignoreArea": each}), 0.0) for each in asked]
        return [answer["code"] for answer in made]

    assert codes() == [umi_ocr.OK, umi_ocr.NO_TEXT]
    assert spent_s(lambda _: codes(), b"", 3) < MAX_S


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, int]]:
    with (
        reserved_port() as rpc_port,
        run_server({"OCRSVC_WORKERS": "1", "OCRSVC_GRPC_BIND": f"127.0.0.1:{rpc_port}"}) as running,
    ):
        yield running, rpc_port


# Some of the formats; benchmarks/hostile.py covers all.
SENT: Final = ("native", "paddlex", "kserve_v2", "http", "grpc")
# Each PDF starts a process, so only one format sends PDFs.
_READS_PDF: Final = "paddlex"


@pytest.mark.parametrize("format_name", SENT)
def test_hostile_requests_do_not_affect_others(server: tuple[Server, int], format_name: str) -> None:
    running, rpc_port = server
    address = running.address
    workers = running.workers()
    checks_s: list[float] = []

    def read() -> Any:
        return requests.post(f"{running.url}/v1/ocr", data=jpeg(), timeout=30).json()["pages"][0]["text"]

    def check_health() -> None:
        began_s = time.monotonic()
        try:
            status = requests.get(f"{running.url}/healthz", timeout=30).status_code
        except requests.RequestException:
            status = 0
        checks_s.append(time.monotonic() - began_s if status == 200 else math.inf)

    expected = read()
    with repeating(check_health):
        for entry in (one for one in table() if one.format == format_name):
            if format_name != _READS_PDF and " pdf_" in entry.name:
                continue
            to = (address[0], rpc_port) if format_name == "grpc" else address
            answers = list(send(entry, to, short=True, limit_s=20.0, most_hold_s=0.3))
            assert {answer.status for answer in answers} & {500} == set(), entry.title
            assert running.workers() == workers, entry.title
        assert read() == expected
    assert max(checks_s) < _HEALTHY_S
