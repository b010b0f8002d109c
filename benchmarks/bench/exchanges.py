"""The request that a client of each wire format sends to read one image."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

Environ = dict[str, Any]
Application = Callable[..., Any]

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
BOUNDARY = "ocrsvc-boundary"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to read an image.

    Attributes:
        adapter: Name of the wire format; "native" is our own API.
        label: Variant of the request; empty if the format has only one.
        path: Path, possibly with a query string.
        content_type, body: As the client sends them.
    """

    adapter: str
    label: str
    path: str
    content_type: str
    body: bytes

    @property
    def name(self) -> str:
        """Adapter and label, for tables."""
        return f"{self.adapter} {self.label}".rstrip()


def exchanges(image: bytes) -> list[Exchange]:
    """One or two requests per wire format, all with the same image."""
    text = base64.b64encode(image).decode()
    url = f"data:image/jpeg;base64,{text}"
    return [
        Exchange("native", "file", "/v1/ocr", *_file("file", image)),
        Exchange("native", "json", "/v1/ocr", JSON, _json(image=text)),
        Exchange("trwebocr", "without picture", "/api/tr-run/?is_draw=0", *_file("file", image)),
        Exchange("trwebocr", "form", "/api/tr-run/?is_draw=0", FORM, b"img=" + quote_plus(text).encode()),
        Exchange("trwebocr_cpp", "", "/api/trocr", *_file("file", image)),
        Exchange("rapidocr_api", "file", "/ocr", *_file("image_file", image)),
        Exchange("rapidocr_api", "form", "/ocr", FORM, b"image_data=" + quote_plus(text).encode()),
        Exchange("paddlex", "without pictures", "/ocr", JSON, _json(file=text, fileType=1, visualize=False)),
        Exchange("paddlehub", "", "/predict/ocr_system", JSON, _json(images=[text])),
        Exchange("paddle_serving", "", "/ocr/prediction", "", _json(key=["image"], value=[text])),
        Exchange("umi_ocr", "", "/api/ocr", JSON, _json(base64=text)),
        Exchange("ocr_space", "with overlay", "/parse/image?isOverlayRequired=true", *_file("file", image)),
        Exchange("docling", "", "/v1/convert/file", *_file("files", image)),
        Exchange("turboocr", "json", "/ocr", JSON, _json(image=text)),
        Exchange("turboocr", "raw", "/ocr/raw", "image/jpeg", image),
        Exchange("kserve_v2", "json", "/v2/models/ocr/infer", "", _tensor(text)),
        Exchange("kserve_v2", "binary answer", "/v2/models/ocr/infer", "", _tensor(text, binary_data_output=True)),
        Exchange("tfserving", "rows", "/v1/models/ocr:predict", "", _json(instances=[{"b64": text}])),
        Exchange("mistral", "", "/v1/ocr", JSON, _json(document={"type": "image_url", "image_url": url})),
        Exchange("google_vision", "", "/v1/images:annotate", JSON, _json(requests=[_image_request(text)])),
        Exchange("tfserving", "columns", "/v1/models/ocr:predict", "", _json(inputs={"image": [{"b64": text}]})),
    ]


def environ_of(path: str, content_type: str, body: bytes, method: str = "POST") -> Environ:
    """The WSGI environ of a request."""
    path, _, query = path.partition("?")
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "127.0.0.1:8000",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": content_type,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }


def call(application: Application, environ: Environ) -> tuple[int, bytes]:
    """Call the WSGI application without a socket; returns the answer's status and body."""
    statuses: list[str] = []
    answer = application(environ, lambda status, _headers, _error=None: statuses.append(status))
    try:
        return int(statuses[0].split()[0]), b"".join(answer)
    finally:
        if hasattr(answer, "close"):
            answer.close()


def _json(**members: object) -> bytes:
    return json.dumps(members).encode()


def _image_request(text: str) -> dict[str, object]:
    """The entry for one image in a Google Cloud Vision request."""
    return {"image": {"content": text}, "features": [{"type": "TEXT_DETECTION"}]}


def _tensor(text: str, **parameters: object) -> bytes:
    """A KServe v2 request in JSON."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    return _json(inputs=[tensor], parameters=parameters)


def _file(name: str, data: bytes) -> tuple[str, bytes]:
    """Content type and body of a multipart form with one file."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="page.jpg"\r\n\r\n'
    return f"multipart/form-data; boundary={BOUNDARY}", head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()
