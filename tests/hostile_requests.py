"""The table of hostile requests: what is sent to which format, how large, and how many at once."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote_plus

from hostile_files import CODES, FILES, PDFS, TEXT_LAYERS, jpeg, noise, pdf_of_noise, small_pdf
from hostile_frames import FRAMES
from hostile_texts import COMPRESSIONS, FORMS, JSON_VALUES, MULTIPARTS, TEXTS
from hostile_wire import CONVERSATIONS, Conversation, MakePieces, header_conversations, query_conversations, request
from support import data_of

Takes = Literal["json", "form", "file", "raw"]
Wrap = Callable[[bytes], bytes]

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
FILE_TYPE: Final = "multipart/form-data; boundary=page"
FULL_BYTES: Final = 60_000_000
SHORT_BYTES: Final = 100_000
PACKED_BYTES: Final = 200_000_000
"""Unpacked size, three times the largest accepted body."""
SIZES: Final = {"letter_equals": (100_000, 1_000_000)}
"""Additional sizes, in bytes, in which a text is sent."""
AT_ONCE: Final = ("png_zeros_50_mp", "jpeg_scans_50_mp", "pdf_content")
_MAX_MB: Final = 600
_WRAPPING_BYTES: Final = 10_000
_MAX_RPC_MB: Final = 200


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One input of a format ("native" is ocrsvc's own API): a path with its query, and the kind of value it takes.

    `wrap` makes the body from that value: a JSON value, a form field's value, a file, or the whole body.
    """

    format: str
    path: str
    takes: Takes
    content_type: str
    wrap: Wrap
    reads_pdf: bool = False
    fields: tuple[bytes, ...] = ()

    def message(self, make: Callable[[int], bytes], size: int) -> Iterable[bytes]:
        """A request with `make(size)`, or with a smaller value where escapes would make the body too large."""
        body = self.wrap(make(size))
        if len(body) > 1.05 * size + _WRAPPING_BYTES:
            body = self.wrap(make(size * size // len(body)))
        return request(self.path, self.content_type, body, *self.fields)

    def send_text(self, make: Callable[[int], bytes], size: int) -> Iterable[bytes]:
        return self.message(lambda size: _as_json(make(size)) if self.takes == "json" else make(size), size)

    def send_file(self, make: Callable[[int], bytes], amount: int) -> Iterable[bytes]:
        """A request with the file `make(amount)`; the unit of `amount` depends on the file: pixels, pages, objects."""
        return request(self.path, self.content_type, self.wrap(self._encoded(make(amount))), *self.fields)

    def _encoded(self, data: bytes) -> bytes:
        if self.takes == "json":
            return b'"' + base64.b64encode(data) + b'"'
        return quote_plus(base64.b64encode(data)).encode() if self.takes == "form" else data


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of hostile request to a wire format, to all formats ("http") or to gRPC ("grpc").

    There is one conversation for each endpoint that accepts it; memory may grow by `most_mb` meanwhile.
    """

    name: str
    format: str
    conversations: tuple[Conversation, ...]
    most_mb: int = _MAX_MB

    @property
    def title(self) -> str:
        return f"{self.format}: {self.name}"


def _as_json(text: bytes) -> bytes:
    return json.dumps(text.decode("latin-1"), ensure_ascii=False).encode()


def _around(before: bytes, after: bytes) -> Wrap:
    return lambda content: b"".join([before, content, after])


def _part(name: str, more: str = '; filename="page.png"') -> Wrap:
    head = f'--page\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return _around(head.encode(), b"\r\n--page--\r\n")


def _json(before: str, after: str) -> tuple[Takes, str, Wrap]:
    return "json", JSON_TYPE, _around(before.encode(), after.encode())


def _form(field: str) -> tuple[Takes, str, Wrap]:
    return "form", FORM_TYPE, _around(f"{field}=".encode(), b"")


def _file(field: str) -> tuple[Takes, str, Wrap]:
    return "file", FILE_TYPE, _part(field)


def _raw(content_type: str) -> tuple[Takes, str, Wrap]:
    return "raw", content_type, lambda content: content


def _endpoint_of(row: dict[str, Any]) -> Endpoint:
    """The endpoint of a row of hostile_endpoints; the key that is no option names its kind."""
    row = {"reads_pdf": False, "fields": [], **row}
    format_name, path, reads_pdf = row.pop("format"), row.pop("path"), row.pop("reads_pdf")
    fields = tuple(field.encode() for field in row.pop("fields"))
    ((kind, given),) = row.items()
    made = _KINDS[kind](*given) if isinstance(given, list) else _KINDS[kind](given)
    return Endpoint(format_name, path, *made, reads_pdf, fields)


def _in_a_tensor(content: bytes) -> bytes:
    """PaddleX's JSON as a string in a tensor."""
    text = _as_json(b'{"fileType":1,"file":' + content + b"}")
    return b'{"inputs":[{"name":"input","datatype":"BYTES","shape":[1,1],"data":[' + text + b"]}]}"


_KINDS: Final[dict[str, Callable[..., tuple[Takes, str, Wrap]]]] = {
    "json": _json,
    "form": _form,
    "file": _file,
    "raw": _raw,
    "field": lambda field: ("form", FILE_TYPE, _part(field, "")),
    "tensor": lambda _: ("json", JSON_TYPE, _in_a_tensor),
}
_INFER: Final = "/v2/models/ocr/infer"
ENDPOINTS: Final[tuple[Endpoint, ...]] = tuple(map(_endpoint_of, data_of("hostile_endpoints")))
FORMATS: Final = tuple(dict.fromkeys(endpoint.format for endpoint in ENDPOINTS))


def _endpoints(format_name: str, *takes: Takes) -> list[Endpoint]:
    return [endpoint for endpoint in ENDPOINTS if endpoint.format == format_name and endpoint.takes in takes]


def _once(pieces: MakePieces, size: int = FULL_BYTES, short: int = SHORT_BYTES) -> Conversation:
    """One connection that waits for its answer."""
    return Conversation(pieces, size, short)


def _entry(name: str, format_name: str, conversations: Iterable[Conversation]) -> Iterator[Entry]:
    found = tuple(conversations)
    if found:
        yield Entry(name, format_name, found)


def _of_texts(format_name: str) -> Iterator[Entry]:
    endpoints = _endpoints(format_name, "json", "form", "raw")
    for name, make in TEXTS.items():
        messages = [partial(endpoint.send_text, make) for endpoint in endpoints]
        yield from _entry(f"text {name}", format_name, map(_once, messages))
        for size in SIZES.get(name, ()):
            sized = [_once(message, size) for message in messages]
            yield from _entry(f"text {name} of {size // 1000} kB", format_name, sized)


def _of_json(format_name: str) -> Iterator[Entry]:
    endpoints = _endpoints(format_name, "json")
    whole = [replace(endpoint, wrap=bytes) for endpoint in endpoints[:1]]
    for name, make in JSON_VALUES.items():
        messages = [partial(endpoint.message, make) for endpoint in endpoints + whole]
        yield from _entry(f"json {name}", format_name, map(_once, messages))


def _of_forms(format_name: str) -> Iterator[Entry]:
    endpoints = _endpoints(format_name, "form", "file")[:1]
    for name, make in FORMS.items():
        messages = [partial(replace(one, content_type=FORM_TYPE, wrap=bytes).message, make) for one in endpoints]
        yield from _entry(f"form {name}", format_name, map(_once, messages))
    for name, make_body in MULTIPARTS.items():
        sent = [_once(partial(_multipart, one.path, make_body)) for one in endpoints]
        yield from _entry(f"multipart {name}", format_name, sent)


def _multipart(path: str, make: Callable[[int], tuple[str, bytes]], size: int) -> Iterable[bytes]:
    return request(path, *make(size))


def _of_files(format_name: str) -> Iterator[Entry]:
    endpoints = _endpoints(format_name, "json", "form", "file", "raw")
    # The first endpoint of each kind: the others differ only in where the request has the file.
    first = {endpoint.takes: endpoint for endpoint in reversed(endpoints)}.values()
    readers = {endpoint.takes: endpoint for endpoint in reversed(endpoints) if endpoint.reads_pdf}.values()
    for table_of_files, chosen in ((FILES, first), (PDFS, readers)):
        for name, file in table_of_files.items():
            sent = [_once(partial(endpoint.send_file, file.make), file.amount, file.short) for endpoint in chosen]
            yield from _entry(f"file {name}", format_name, sent)
            if name in AT_ONCE:
                many = [replace(one, connections=20, short_connections=4) for one in sent[-1:]]
                yield from _entry(f"file {name}, 20 at once", format_name, many)


def _of_queries(format_name: str) -> Iterator[Entry]:
    path = _endpoints(format_name, "json", "form", "file", "raw")[0].path
    for name, conversation in query_conversations(path).items():
        yield Entry(name, format_name, (conversation,))


def _packed(endpoint: Endpoint, encoding: str, press: Wrap, size: int) -> Iterable[bytes]:
    """A small image among blanks, compressed to about a thousandth of its size."""
    body = endpoint.wrap(b" " * size + b'"' + base64.b64encode(jpeg()) + b'"')
    return request(endpoint.path, JSON_TYPE, press(body), b"Content-Encoding: " + encoding.encode(), *endpoint.fields)


def _of_packed_bodies(format_name: str) -> Iterator[Entry]:
    for name, (encoding, press) in COMPRESSIONS.items():
        messages = [partial(_packed, one, encoding, press) for one in _endpoints(format_name, "json")[:1]]
        sent = [_once(message, PACKED_BYTES) for message in messages]
        yield from _entry(f"packed {name}", format_name, sent)


def _of_elements(size: int) -> Iterable[bytes]:
    """Raw tensor data after the JSON, with only empty elements."""
    count = size // 4
    head = b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}}]}'
    written = head % (count, 4 * count)
    field = b"Inference-Header-Content-Length: %d" % len(written)
    return request(_INFER, "application/octet-stream", written + bytes(4 * count), field)


def _pdf_with_pictures(size: int) -> Iterable[bytes]:
    body = {"file": base64.b64encode(pdf_of_noise(size)).decode(), "fileType": 0, "visualize": True}
    return request("/ocr", JSON_TYPE, json.dumps(body).encode())


def _drawn_noise(size: int) -> Iterable[bytes]:
    return request("/api/tr-run/?compress=0", FILE_TYPE, _part("file")(noise(size)))


_MODEL_PATHS: Final = (
    *("/v2/models/{}/infer", "/v2/models/ocr/versions/{}/infer"),
    *("/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"),
    *("/v1/models/{}:predict", "/v1/models/ocr/versions/{}:predict", "/v1/models/ocr/labels/{}:predict"),
)
_MODEL_NAMES: Final = (
    *("9" * 7000, "a" * 7000, "..%2F" * 1000, "%F0%9F%98%80" * 500, "ocr:" * 999),
    *("%00", "ocr%2F1", "%C2%B2", "-1"),
)


def _model_message(path: str, _size: int) -> Iterable[bytes]:
    return request(path, JSON_TYPE, b'{"inputs":[],"instances":[]}')


def _native(path: str, content_type: str = "application/octet-stream") -> Endpoint:
    return Endpoint("native", path, *_raw(content_type))


def _of_codes() -> Iterator[Entry]:
    """Images that resemble barcodes and take long to search, as whole pages and as regions."""
    paths = ("/v1/ocr?barcodes=true", "/v1/ocr?barcodes=only&region=0,1,1000000,1000000")
    for name, file in CODES.items():
        endpoints = [_native(path, "image/png") for path in paths]
        sent = [_once(partial(endpoint.send_file, file.make), file.amount, file.short) for endpoint in endpoints]
        yield Entry(f"codes {name}", "native", tuple(sent))


def _large_document(path: str, size: int) -> Iterable[bytes]:
    return request(path, "application/pdf", small_pdf(max(1, size // 400_000)))


# Forms of answer that only the native API has: each hostile document is sent for each of them.
_ANSWERS: Final = {
    "searchable": "/v1/ocr?format=pdf&pages=1",
    "zipped": "/v1/ocr?format=json,text,tsv,hocr,alto,md,pdf&pages=1",
    "streamed": "/v1/ocr?format=ndjson",
    "pictured": "/v1/ocr/picture?page=1",
    "own text of": "/v1/ocr?format=pdf&text_layer=auto&pages=1",
    "job with": "/v1/jobs?format=json,pdf&pages=1",
}
_TAKES_JOBS: Final = {"/api/doc/upload": "umi_ocr", "/v1/jobs": "native", "/v1/convert/file/async": "docling"}
_MANY: Final = Conversation(partial(_large_document, "/v1/ocr?format=ndjson"), 4_000_000, 400_000)


def _of_answers() -> Iterator[Entry]:
    """Documents and images with many pixels, for every form of answer; and clients that disconnect at once."""
    pictures = {name: FILES[name] for name in ("png_zeros_50_mp", "jpeg_scans_50_mp")}
    for answer, path in _ANSWERS.items():
        endpoint = _native(path)
        for name, file in {**PDFS, **TEXT_LAYERS, **pictures}.items():
            sent = _once(partial(endpoint.send_file, file.make), file.amount, file.short)
            yield Entry(f"{answer} {name}", "native", (sent,))
    begun = replace(_MANY, connections=100, short_connections=10, hold_s=0.2)
    yield Entry("100 streams that are left at once", "native", (begun,))


_UNREAD: Final[tuple[tuple[str, str, MakePieces], ...]] = (
    ("answers in pieces, unread", "native", partial(_large_document, "/v1/ocr?format=ndjson")),
    ("answers as PDF, unread", "native", partial(_large_document, "/v1/ocr?format=pdf")),
    ("answers with pictures, unread", "paddlex", _pdf_with_pictures),
    ("answers with a picture, unread", "trwebocr", _drawn_noise),
    ("answers as TSV, unread", "native", partial(_large_document, "/v1/ocr?format=tsv")),
)


def _special() -> Iterator[Entry]:
    """Requests that fit one format only."""
    yield from _of_codes()
    yield from _of_answers()
    yield Entry("binary elements", "kserve_v2", (_once(_of_elements),))
    named = [partial(_model_message, path.format(name)) for path in _MODEL_PATHS for name in _MODEL_NAMES]
    yield Entry("names of models", "kserve_v2", tuple(map(_once, named)))
    kinds: dict[str, Callable[[int], bytes]] = {"documents": small_pdf, "images": lambda _amount: jpeg()}
    for kind, make_file in kinds.items():
        for path, format_name in _TAKES_JOBS.items():
            upload = Endpoint(format_name, path, *_file("files" if format_name == "docling" else "file"))
            left = _once(partial(upload.send_file, make_file), 1, 1)
            yield Entry(f"200 small {kind}", format_name, (replace(left, connections=200, short_connections=10),))
    for name, format_name, make in _UNREAD:
        unread = Conversation(make, 3_000_000, 20_000, connections=6, short_connections=2, reads=False, hold_s=30.0)
        yield Entry(name, format_name, (unread,))


def _of_connections() -> Iterator[Entry]:
    for name, conversation in {**CONVERSATIONS, **header_conversations()}.items():
        yield Entry(name, "http", (conversation,))
    for name, conversation in FRAMES.items():
        yield Entry(name, "grpc", (conversation,), _MAX_RPC_MB)


def table() -> list[Entry]:
    kinds = (_of_texts, _of_json, _of_forms, _of_queries, _of_packed_bodies, _of_files)
    found = [entry for format_name in FORMATS for kind in kinds for entry in kind(format_name)]
    return [*found, *_special(), *_of_connections()]


def of_folder(folder: Path) -> list[Entry]:
    """One entry per format, which sends every file of a folder unchanged."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix not in {".txt", ".jsonl"})
    found: list[Entry] = []
    for format_name in FORMATS:
        endpoint = _endpoints(format_name, "file", "json", "raw")[0]
        sent = [_once(partial(_send_file_at, endpoint, file)) for file in files]
        found += _entry(f"{len(files)} damaged files", format_name, sent)
    return found


def _send_file_at(endpoint: Endpoint, path: Path, _size: int) -> Iterable[bytes]:
    return endpoint.send_file(lambda _size: path.read_bytes(), 0)
