"""Every supported way to send an image is parsed, and malformed requests are refused with their reason."""

import io
import uuid
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_support import png
from support import data_of, filled
from urllib3.filepost import encode_multipart_formdata
from web_support import as_base64

from ocrsvc import errors
from ocrsvc.errors import BadBase64, BadOption, BodyTooLarge, CallerError, NothingSent, OcrsvcError
from ocrsvc.http.parsed_body import MAX_PARTS, Content, parse_json, split_parts
from ocrsvc.http.request import Request, allowed_s, read_body
from ocrsvc.serving.memory_budget import unlimited
from ocrsvc.settings.settings import Settings

LIMIT = 8 << 20
PNG = png()
B64 = as_base64(PNG)
FILES, TEXTS = ("file",), ("image", "images", "file")


def environ(body: bytes, content_type: str = "", query: str = "", **more: Any) -> dict[str, Any]:
    return {
        "wsgi.input": io.BytesIO(body),
        "CONTENT_LENGTH": str(len(body)),
        "CONTENT_TYPE": content_type,
        "QUERY_STRING": query,
        **more,
    }


def content(body: bytes, content_type: str = "", query: str = "") -> Content:
    return Request(environ(body, content_type, query), Settings(max_body_bytes=LIMIT)).content


def images(body: bytes, content_type: str = "", query: str = "") -> list[bytes]:
    found = content(body, content_type, query).images(FILES, TEXTS)
    for image in found:
        if isinstance(image, OcrsvcError):
            raise image
    return [image for image in found if isinstance(image, bytes)]


def form(*fields: Any) -> tuple[bytes, str]:
    return encode_multipart_formdata(fields)


FORM, JSON = "application/x-www-form-urlencoded", "application/json"
WAYS: dict[str, tuple[bytes, str]] = {
    "multipart file": form(("file", ("a.png", PNG, "image/png"))),
    "multipart file with an empty name": form(("file", ("", PNG, "image/png"))),
    "multipart bytes without a file name": form(("file", PNG)),
    "multipart base64": form(("image", B64)),
    "multipart image and an empty file": form(("file", ("", b"")), ("image", B64)),
    **{
        name: (filled(body, PAGE=B64, ESCAPED=quote(B64, safe="")).encode(), kind)
        for name, (body, kind) in data_of("ways_of_sending")["ways"].items()
    },
    "raw": (PNG, "image/png"),
    "raw of another type": (PNG, "image/jpeg"),
    "raw bytes": (PNG, "application/octet-stream"),
    "raw without a type": (PNG, ""),
    "raw labelled as a form": (PNG, FORM),
    "raw labelled as JSON": (PNG, JSON),
    "raw labelled as text": (PNG, "text/plain"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_image_arrives_unchanged_however_it_is_sent(way: str) -> None:
    assert images(*WAYS[way]) == [PNG]


def test_json_is_parsed_by_the_standard() -> None:
    text = '\ufeff{"a":[{"b":"x"}],"image":"A\\n\\"\\/\\u0041é"}'
    assert parse_json(text.encode()) == {"a": [{"b": "x"}], "image": 'A\n"/Aé'}
    assert parse_json(b'{"image":"QUJD","image":"QUI="}') == {"image": "QUI="}


def test_images_are_found_in_queries_and_files_precede_fields() -> None:
    assert images(b"", query=f"image={B64}") == [PNG]
    # A body labelled as a form without fields is passed on; the decoder reports that it is not an image.
    assert images(b"%PDF-1.7\n=", FORM) == [b"%PDF-1.7\n="]
    assert images(*form(("image", B64), ("file", ("1", b"one")), ("file", ("2", b"two")))) == [b"one", b"two", PNG]


MULTIPART = "multipart/form-data; boundary=x"
DISPOSITION = b"Content-Disposition: form-data; name="


def multipart(head: bytes, end: bytes = b"\r\n\r\nabc\r\n--x--") -> tuple[bytes, str]:
    return b"--x\r\n" + head + end, MULTIPART


def near_misses(*counts: int) -> tuple[bytes, str]:
    header = b"--x\r\n" + DISPOSITION + b"file; filename=a\r\n\r\n"
    return b"".join(header + b"\r\n--xa" * count + b"\r\n" for count in counts) + b"--x--", MULTIPART


TYPES = {"": "", "form": FORM, "json": JSON, "multipart": MULTIPART}
REFUSED: dict[str, tuple[tuple[bytes, str], type[OcrsvcError], str]] = {
    **{
        name: ((body.encode(), TYPES[kind]), getattr(errors, error), reason)
        for name, (body, kind, error, reason) in data_of("refused_bodies")["rows"].items()
    },
    "another field": (form(("photo", ("a.png", PNG))), NothingSent, "'photo'"),
    "an empty file": (form(("file", ("a.png", b""))), NothingSent, "The file is empty."),
    "deep JSON": ((b'{"a":' + b"[" * 5_000, JSON), CallerError, "not JSON"),
    "JSON of very many lists": ((b'{"a":' + b"[" * 100_000, JSON), BodyTooLarge, "10000 lists"),
    "JSON of very many quotes": ((b'{"a":"' + b'\\"' * 100_000 + b'"}', JSON), BodyTooLarge, "50000 quotes"),
    "an error after a long text": ((b'{"image": "' + b"A" * 1000 + b'"; "a": 1}', JSON), CallerError, "character 1012"),
    "too many fields": ((b"a=1&" * (MAX_PARTS + 1), FORM), BodyTooLarge, "1000 fields"),
    "bare percent signs": ((b"image=" + b"%" * 100_000, FORM), BadBase64, "percent escapes"),
    "too many JSON members": ((b'{"":1' + b',"":1' * 50_001 + b"}", JSON), BodyTooLarge, "50000 (commas|quotes)"),
    "many empty texts": ((b'{"images": [' + b'"",' * 50_001 + b'""]}', JSON), BodyTooLarge, "50000 (commas|quotes)"),
    "too long headers": (form(*[("a" * 600, "")] * 900), CallerError, "headers of its parts have more than 524288"),
    "too many headers": (multipart(DISPOSITION + b"a" + b"\r\na: b" * 64), CallerError, "more than 64 header lines"),
    "too many parameters": (multipart(DISPOSITION + b"a" + b"; a=b" * 64), CallerError, "too many parameters"),
    "too many parts": (form(*[("file", "")] * (MAX_PARTS + 1)), BodyTooLarge, "1000 parts"),
    "too many images": ((b'{"images": [' + b'"QUJD",' * 1001 + b"null]}", JSON), BodyTooLarge, "1000 images"),
    "multipart without boundary": ((form(("file", PNG))[0], "multipart/form-data"), CallerError, "no boundary"),
    "multipart headers without an end": (multipart(bytes(200_000), b""), CallerError, "do not end"),
    "another boundary": ((form(("file", PNG))[0], "multipart/form-data; boundary=other"), CallerError, "not occur"),
    "a long boundary": ((b"--x", "multipart/form-data; boundary=" + "x" * 257), CallerError, "1 to 256 characters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_refused_with_its_reason(case: str) -> None:
    sent, error, reason = REFUSED[case]
    with pytest.raises(error, match=reason) as caught:
        images(*sent)
    assert type(caught.value) is error


def test_many_escapes_and_near_boundaries_are_read() -> None:
    assert images(b"image=" + b"%41" * 200_000, FORM) == [bytes(150_000)]
    assert images(*near_misses(4000, 60_000)) == [b"\r\n--xa" * 4000, b"\r\n--xa" * 60_000]


@settings(max_examples=100, deadline=None)
@given(st.text("%+&=/2BbFf3DdA04a1z", max_size=30))
def test_forms_parse_as_in_urllib(text: str) -> None:
    sent = f"image={text}"
    pairs = parse_qsl(sent, keep_blank_values=True, encoding="latin-1")
    expected = [(name.encode("latin-1").decode(errors="replace"), value.encode("latin-1")) for name, value in pairs]
    assert list(content(sent.encode(), FORM).fields) == expected


@pytest.mark.parametrize("padding", [b"", b"  "])
def test_a_delimiter_is_found_at_any_offset(padding: bytes) -> None:
    head, line = b"Content-Disposition: form-data; name=%b\r\n\r\n", b"--x%b\r\n" % padding
    begin, end = line + head % b"file;filename=a", b"\r\n" + line + head % b"b" + b"true\r\n--x--"
    wrong = []
    # The multipart parser gets chunks of 64 KiB: the delimiter crosses every offset of a chunk's end.
    for at in range(65536 - len(begin + end) - 2, 65536 - len(begin) + 2):
        data = b"z" * at
        found = [part.data for part in split_parts(begin + data + end, MULTIPART)]
        if found != [data, b"true"]:
            wrong.append((at, [part[-20:] for part in found]))
    assert wrong == []


def test_a_preamble_padding_and_folded_headers_are_understood() -> None:
    body = (
        b"Hello\r\n--x  \r\ncontent-disposition: form-data;\r\n\tname=file; filename*=UTF-8''%E5%9B%BE.png\r\n\r\nabc"
        b"\r\n--x\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--x--\r\nepilogue"
    )
    first, second = split_parts(body, 'multipart/form-data; boundary="x"')
    assert (first.name, first.filename, first.data) == ("file", "图.png", b"abc")
    assert (second.name, second.filename, second.data) == ("empty", None, b"")


HEADER = DISPOSITION + b"a\r\n\r\n"
NEAR = b"\r\n--xx\r\n--x-\r\n --x--\r\n--x y\r\n\r\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"--x\r\n" + HEADER + NEAR + b"\r\n--x--\r\n", [NEAR]),
        # A part without content may share its line break with the delimiter.
        (b"--x\r\n" + HEADER + b"--x\r\n" + HEADER + b"b\r\n--x--", [b"", b"b"]),
        # A file name need not be UTF-8.
        (b"--x\r\n" + HEADER[:-4] + b'; filename="' + "图".encode("gbk") + b'"\r\n\r\nabc\r\n--x--', [b"abc"]),
    ],
)
def test_part_data_ends_at_the_delimiters(body: bytes, expected: list[bytes]) -> None:
    assert [part.data for part in split_parts(body, "multipart/form-data; boundary=x")] == expected


NAMES = st.text(st.characters(codec="utf-8", exclude_characters='\\"\r\n', min_codepoint=32), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), NAMES), st.binary(max_size=200)), max_size=5))
def test_parts_written_by_another_library_are_read(parts: list[tuple[str, str | None, bytes]]) -> None:
    fields: list[Any] = [(name, data if filename is None else (filename, data)) for name, filename, data in parts]
    found = split_parts(*encode_multipart_formdata(fields, "b0undary"))
    assert [(part.name, part.filename, part.data) for part in found] == parts


ENDLESS = SimpleNamespace(read=lambda _size=-1: bytes(7))
BROKEN = SimpleNamespace(read=Mock(side_effect=ConnectionResetError))
CHUNKED = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}


@pytest.mark.parametrize(
    ("stream", "more", "expected"),
    [
        (io.BytesIO(bytes(100)), {"CONTENT_LENGTH": "100"}, 100),
        (io.BytesIO(bytes(100)), CHUNKED, 100),
        # Without a length, and not terminated by the server: no body.
        (io.BytesIO(bytes(100)), {}, 0),
        (io.BytesIO(bytes(101)), {"CONTENT_LENGTH": "101"}, "101 bytes is larger than the limit of 100 bytes"),
        (ENDLESS, CHUNKED, "larger than the limit of 100 bytes"),
        (io.BytesIO(bytes(10)), {"CONTENT_LENGTH": "20"}, "cannot be read completely"),
        (BROKEN, {"CONTENT_LENGTH": "20"}, "cannot be read completely"),
        (BROKEN, CHUNKED, "cannot be read completely"),
    ],
)
def test_other_wsgi_servers_bodies_have_a_limit(stream: Any, more: dict[str, Any], expected: int | str) -> None:
    sent = {"wsgi.input": stream, **more}
    if isinstance(expected, int):
        assert read_body(sent, 100, unlimited()) == bytes(expected)
    else:
        with pytest.raises(CallerError, match=expected):
            read_body(sent, 100, unlimited())


@pytest.mark.parametrize(
    ("sent", "elapsed", "expected_s"),
    [
        *[(None, None, 60.0), ("5", None, 5.0), ("600", None, 60.0), (".5", None, 0.5), ("1e1", None, 10.0)],
        *[("9" * 40, None, 60.0), ("5", "1.5", 3.5), ("5", "0.000", 5.0), ("600", "30", 60.0), ("5", "5", 0.0)],
        *[("5", "7.25", 0.0), (None, "9", 60.0)],
    ],
)
def test_deadline_is_the_timeout_minus_elapsed_time(sent: str | None, elapsed: str | None, expected_s: float) -> None:
    assert allowed_s(sent, 60.0, elapsed) == expected_s


@pytest.mark.parametrize(
    ("sent", "elapsed", "header"),
    [
        *((sent, None, "X-Request-Timeout") for sent in data_of("refused_bodies")["timeouts"]),
        *(("5", elapsed, "X-Request-Elapsed") for elapsed in ("", "soon", "-1", "nan", "1,5")),
    ],
)
def test_malformed_timeouts_are_refused(sent: str, elapsed: str | None, header: str) -> None:
    with pytest.raises(BadOption, match=header):
        allowed_s(sent, 60.0, elapsed)


def test_a_valid_request_id_is_kept_and_any_other_replaced_once() -> None:
    assert Request(environ(b"", HTTP_X_REQUEST_ID="a-1/b:2"), Settings()).id == "a-1/b:2"
    request = Request(environ(b"", HTTP_X_REQUEST_ID="two words"), Settings())
    first = request.id
    assert uuid.UUID(first).version == 7
    assert request.id == first
