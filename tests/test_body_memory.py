"""Parsing a body reserves memory in the request's account and takes a small multiple of the body's size."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from hostile_texts import repeated

from ocrsvc.errors import BodyTooLarge, DeadlineExceeded, OcrsvcError
from ocrsvc.http.parsed_body import Content, limited_parsing, parse_body
from ocrsvc.serving.memory_budget import Budget, Share, unlimited

FORM, JSON = "application/x-www-form-urlencoded", "application/json"
BODY: Final = 8_000_000


def content(body: bytes, content_type: str, account: Share) -> Content:
    account.take(len(body))
    return parse_body(body, content_type, (), account, math.inf)


def images(body: bytes, content_type: str, account: Share) -> list[bytes | OcrsvcError]:
    return content(body, content_type, account).images(("file",), ("image",))


def form_of_parts() -> tuple[bytes, str]:
    header = b"Content-Disposition: form-data; name=image\r\n\r\n"
    body = b"".join(b"--x\r\n" + header + repeated(b"QUJD", BODY // 64) + b"\r\n" for _ in range(64)) + b"--x--\r\n"
    return body, "multipart/form-data; boundary=x"


def json_of(unit: bytes) -> tuple[bytes, str]:
    return b'{"image":"' + repeated(unit, BODY) + b'"}', JSON


BODIES: Final[Mapping[str, tuple[bytes, str]]] = {
    "escaped pluses": (b"image=" + repeated(b"%2B", BODY), FORM),
    "A===": json_of(b"A==="),
    "letters": json_of(b"QUJD"),
    "empty lists": (b'{"image":[' + repeated(b"[],", BODY) + b"1]}", JSON),
    "blanks in a text": json_of(b" "),
    "blanks between letters": json_of(b"A "),
    "blanks beside lists": (b'{"image":' + repeated(b" ", BODY) + b"1}", JSON),
    "blanks in a form": (b"image=" + repeated(b"+", BODY), FORM),
    "line breaks": (b"image=" + repeated(b"A%0A", BODY), FORM),
    "many parts": form_of_parts(),
    "lines and blanks": json_of(b"AB \\n"),
    "a text with an emoji": (b'{"image":"' + repeated(b"QUJD", BODY) + "\N{GRINNING FACE}".encode() + b'"}', JSON),
    "an emoji beside the text": (json_of(b"QUJD")[0][:-1] + ',"name":"\N{GRINNING FACE}"}'.encode(), JSON),
    "unicode escapes": json_of(b"\\u0041"),
    "many texts": (b'{"image":[' + b",".join([b'"' + repeated(b"QUJD", BODY // 64) + b'"'] * 64) + b"]}", JSON),
    "ampersands": (b"image=" + repeated(b"&", BODY), FORM),
}


def resident_bytes(name: str) -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) << 10


@pytest.mark.parametrize("name", BODIES)
def test_parsing_a_body_takes_a_small_multiple_of_its_size(name: str) -> None:
    body, content_type = BODIES[name]
    account = Share(Budget(5 * BODY))
    # Reset the peak of resident memory; memory that a parser reserves but never writes is not resident.
    Path("/proc/self/clear_refs").write_text("5")
    before_bytes = resident_bytes("VmRSS")
    with suppress(OcrsvcError):
        images(body, content_type, account)
    # 16 MiB of slack: the account ignores small allocations and slices of a string.
    assert resident_bytes("VmHWM") - before_bytes < 4 * BODY + (16 << 20)


@pytest.mark.parametrize(
    ("content_type", "before", "after", "times"), [(JSON, b'{"image":"', b'"}', 3.0), (FORM, b"image=", b"", 2.0)]
)
def test_parsing_takes_budgeted_memory_first(content_type: str, before: bytes, after: bytes, times: float) -> None:
    body = before + repeated(b"QUJD", BODY) + after
    account, wider = Share(Budget(int(times * BODY) - 1000)), Share(Budget(int(times * BODY) + 1000))
    with pytest.raises(BodyTooLarge, match="more memory"):
        images(body, content_type, account)
    with pytest.raises(BodyTooLarge, match="more memory"):
        content(body, content_type, account)
    sent = content(body, content_type, wider)
    assert BODY <= wider.held_bytes < BODY + 1000
    assert len(sent.images((), ("image",))) == 1
    assert wider.held_bytes == pytest.approx(1.75 * BODY, abs=1000)


def test_few_large_bodies_are_parsed_at_once() -> None:
    with ExitStack() as others:
        for _ in range(2):
            others.enter_context(limited_parsing(unlimited(), BODY, math.inf))
        with pytest.raises(DeadlineExceeded), limited_parsing(unlimited(), BODY, time.monotonic()):
            pass
        assert content(b'{"image":"QUJD"}', JSON, unlimited()).fields == (("image", "QUJD"),)
    assert content(json_of(b"QUJD")[0], JSON, unlimited()).fields
