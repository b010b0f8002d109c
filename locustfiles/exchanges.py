"""Requests for a page in each wire format, and checks of their answers. Independent of locust."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from pages import KnownPage, drawn, wrong_text

NATIVE = "/v1/ocr"
TRWEBOCR = "/api/tr-run/"
TRWEBOCR_CPP = "/api/trocr"

FORM = "application/x-www-form-urlencoded"
BOUNDARY = "ocrsvc-load"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; status 0 means that the connection broke. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Judge = Callable[[Answer, str], str]
"""Takes an answer and the engine's name; returns what is wrong with the answer, or ""."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and the check of its answer."""

    name: str
    path: str
    content_type: str
    body: bytes
    judge: Judge

    def complaint(self, answer: Answer, engine: str) -> str:
        """What is wrong with an answer, or ""; an answer that cannot be parsed is wrong too."""
        try:
            return self.judge(answer, engine)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return f"the answer cannot be parsed: {error!r}: {answer.body[:200]!r}"


def refusal_s(answer: Answer) -> float | None:
    """Seconds after which a refused request may be repeated; None unless the answer is a refusal."""
    sent = answer.headers.get("retry-after", "")
    return float(sent) if answer.status == 503 and sent.isdigit() else None


def native_multipart(page: KnownPage) -> Exchange:
    """POST /v1/ocr with a form's file."""
    return Exchange("native multipart", NATIVE, MULTIPART, _form(page, "file"), _reads(page, _native_text))


def native_raw(page: KnownPage) -> Exchange:
    """POST /v1/ocr with the image as the body."""
    return Exchange("native raw", NATIVE, page.media_type, page.data, _reads(page, _native_text))


def native_json(page: KnownPage) -> Exchange:
    """POST /v1/ocr with base64 in JSON."""
    body = json.dumps({"image": _base64(page)}).encode()
    return Exchange("native JSON", NATIVE, "application/json", body, _reads(page, _native_text))


def native_urlencoded(page: KnownPage) -> Exchange:
    """POST /v1/ocr with base64, as a data URI, in an urlencoded form."""
    body = urlencode({"image": f"data:{page.media_type};base64,{_base64(page)}"}).encode()
    return Exchange("native urlencoded", NATIVE, FORM, body, _reads(page, _native_text))


def trwebocr_multipart(page: KnownPage) -> Exchange:
    """POST /api/tr-run/ as TrWebOCR's web page does; the answer also has a picture."""
    body = _form(page, "file", compress="0")
    return Exchange("TrWebOCR multipart", TRWEBOCR, MULTIPART, body, _reads(page, _trwebocr_text_and_picture))


def trwebocr_urlencoded(page: KnownPage) -> Exchange:
    """POST /api/tr-run/ with base64, without a picture in the answer."""
    body = urlencode({"img": _base64(page), "compress": "0", "is_draw": "0"}).encode()
    return Exchange("TrWebOCR urlencoded", TRWEBOCR, FORM, body, _reads(page, _trwebocr_text))


def cpp_multipart(page: KnownPage) -> Exchange:
    """POST /api/trocr with a form's file."""
    return Exchange("TrWebOCR.cpp multipart", TRWEBOCR_CPP, MULTIPART, _form(page, "file"), _reads(page, _cpp_text))


def cpp_urlencoded(page: KnownPage) -> Exchange:
    """POST /api/trocr with base64 in which "+" is not escaped, as many clients send it."""
    body = f"img_base64={_base64(page)}".encode()
    return Exchange("TrWebOCR.cpp urlencoded", TRWEBOCR_CPP, FORM, body, _reads(page, _cpp_text))


EVERY_WAY = (
    native_multipart,
    native_raw,
    native_json,
    native_urlencoded,
    trwebocr_multipart,
    trwebocr_urlencoded,
    cpp_multipart,
    cpp_urlencoded,
)


def broken() -> list[Exchange]:
    """Requests that must be refused, each with the expected status."""
    cut = drawn(0).data[:-400]
    huge_header = _declare_size(drawn(0).data, 30_000)
    return [
        Exchange("broken: cut off", NATIVE, "image/png", cut, _refuses(422)),
        Exchange("broken: no image", NATIVE, "image/png", b"this is not an image", _refuses(415)),
        Exchange("broken: 30000 x 30000 declared", NATIVE, "image/png", huge_header, _refuses(413)),
        Exchange("broken: bad base64", NATIVE, "application/json", b'{"image": "%%%%"}', _refuses(400)),
        Exchange("broken: nothing sent", NATIVE, MULTIPART, f"--{BOUNDARY}--\r\n".encode(), _refuses(400)),
        Exchange("broken: TrWebOCR, nothing sent", TRWEBOCR, FORM, b"compress=0", _refuses_as_trwebocr(400)),
        Exchange("broken: TrWebOCR, no image", TRWEBOCR, FORM, b"img=bm9wZQ%3D%3D", _refuses_as_trwebocr(415)),
        Exchange("broken: TrWebOCR.cpp, cut off", TRWEBOCR_CPP, "image/png", cut, _refuses_as_cpp(422)),
    ]


def _reads(page: KnownPage, text_of: Callable[[bytes], str]) -> Judge:
    """Check for status 200 and the page's text."""

    def judge(answer: Answer, engine: str) -> str:
        if answer.status != 200:
            return f"{page.name}: status {answer.status}: {answer.body[:200]!r}"
        return wrong_text(page, engine, text_of(answer.body))

    return judge


def _native_text(body: bytes) -> str:
    (page,) = json.loads(body)["pages"]
    text = "\n".join(line["text"] for line in page["lines"])
    if text != page["text"]:
        raise ValueError("the page's text differs from its lines")
    return text


def _trwebocr_text(body: bytes) -> str:
    answer = json.loads(body)
    if answer["code"] != 200 or answer["msg"] != "成功":
        raise ValueError("code and msg do not report success")
    return "\n".join(text for _rect, text, _confidence in answer["data"]["raw_out"])


def _trwebocr_text_and_picture(body: bytes) -> str:
    if not json.loads(body)["data"]["img_detected"].startswith("data:image/jpeg;base64,"):
        raise ValueError("img_detected is not a JPEG")
    return _trwebocr_text(body)


def _cpp_text(body: bytes) -> str:
    text = body.decode()
    if not text.endswith("|"):
        raise ValueError("the last line does not end with a bar")
    return text[:-1].replace("|", "\n")


def _refuses(status: int) -> Judge:
    """Check for the status, and the same status in the problem JSON."""

    def judge(answer: Answer, _engine: str) -> str:
        if answer.status != status or json.loads(answer.body)["status"] != status:
            return f"expected status {status}, got {answer.status}: {answer.body[:200]!r}"
        return ""

    return judge


def _refuses_as_trwebocr(status: int) -> Judge:
    def judge(answer: Answer, _engine: str) -> str:
        if answer.status != status or json.loads(answer.body)["code"] != status:
            return f"expected status {status}, got {answer.status}: {answer.body[:200]!r}"
        return ""

    return judge


def _refuses_as_cpp(status: int) -> Judge:
    def judge(answer: Answer, _engine: str) -> str:
        if answer.status != status or not answer.body:
            return f"expected status {status}, got {answer.status}: {answer.body[:200]!r}"
        return ""

    return judge


def _base64(page: KnownPage) -> str:
    return base64.b64encode(page.data).decode()


def _form(page: KnownPage, field: str, **texts: str) -> bytes:
    """A multipart body: text fields, then the page as a file."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in texts.items()
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="page"\r\n'
    head += f"Content-Type: {page.media_type}\r\n\r\n"
    return ("".join(parts) + head).encode() + page.data + f"\r\n--{BOUNDARY}--\r\n".encode()


def _declare_size(png: bytes, side_px: int) -> bytes:
    """The PNG with a header that declares a square of this size, and a matching checksum."""
    header = b"IHDR" + side_px.to_bytes(4, "big") * 2 + png[24:29]
    return png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]
