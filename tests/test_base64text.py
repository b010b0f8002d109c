"""Decoding of base64 text: accepted variants, and errors that name the fault and its position."""

import base64
import textwrap
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import data_of

from ocrsvc.errors import BadBase64, NothingSent
from ocrsvc.http.base64text import decode_base64

# Encodes to every base64 character, many "+" and "/"; the length is 3n+1 bytes, so the text ends in "==".
DATA = bytes(range(256)) * 3 + b"\xfb\xef\xbe" * 40 + b"\xff\xff\xff" * 20 + b"\xf8"
TEXT = base64.b64encode(DATA).decode()


def wrap(text: str, between: str, width: int = 76) -> str:
    return between.join(textwrap.wrap(text, width))


VARIANTS = {
    "data URI": f"data:image/png;base64,{TEXT}",
    "data URI in capitals": f"DATA:IMAGE/PNG;BASE64,{TEXT}",
    "data URI with a charset": f"data:image/jpeg;charset=utf-8;base64,{TEXT}",
    "data URI and a space": f"data:image/png;base64, {TEXT}",
    "spaces at the line ends": wrap(TEXT, "  \r\n"),
    "spaces for pluses": TEXT.replace("+", " "),
    "spaces for pluses in lines": wrap(TEXT, "\n").replace("+", " "),
    "spaces for pluses in a data URI": f"data:image/svg+xml;base64,{TEXT}".replace("+", " "),
    "lower-case percent escapes": TEXT.replace("+", "%2b").replace("/", "%2f").replace("=", "%3d"),
    "an escaped data URI": quote(f"data:image/png;base64,{TEXT}", safe=""),
    "escaped line breaks": wrap(TEXT, "%0D%0A"),
    "outer whitespace": f" \n{TEXT}\r\n ",
}


@pytest.mark.parametrize("text", VARIANTS.values(), ids=VARIANTS.keys())
def test_recoverable_text_is_decoded(text: str) -> None:
    assert (decode_base64(text), decode_base64(text.encode())) == (DATA, DATA)
    assert decode_base64(memoryview(text.encode())) == DATA


@given(data=st.binary(min_size=1, max_size=300), width=st.integers(1, 25))
def test_every_variant_of_base64_decodes_to_the_same_bytes(data: bytes, width: int) -> None:
    text = base64.b64encode(data).decode()
    safe = base64.urlsafe_b64encode(data).decode()
    lines = wrap(text, "\n", 4 * width)
    assert [decode_base64(each) for each in (text, text.rstrip("="), safe, lines, quote(text, safe=""))] == [data] * 5


@given(data=st.binary(min_size=1, max_size=300))
def test_spaces_are_read_as_pluses(data: bytes) -> None:
    # Like the base64 of an image, the text starts and ends without "+": outer spaces are stripped.
    text = base64.b64encode(b"\x89PNG" + data + b"\x82").decode()
    assert decode_base64(text.replace("+", " ")) == base64.b64decode(text)


@pytest.mark.parametrize("text", ["", " ", "\r\n", "data:image/png;base64,", "===", b"", memoryview(b"")])
def test_empty_text_counts_as_nothing_sent(text: str | bytes | memoryview) -> None:
    with pytest.raises(NothingSent):
        decode_base64(text)


@pytest.mark.parametrize(("text", "complaint"), data_of("wrong_base64")["texts"])
def test_errors_name_the_fault(text: str, complaint: str) -> None:
    with pytest.raises(BadBase64, match=complaint):
        decode_base64(text)


@given(text=st.one_of(st.text(max_size=60), st.text("AQaz09+/-_=% \r\n,:;data", max_size=60)))
def test_any_text_is_decoded_or_raises_a_documented_error(text: str) -> None:
    with suppress(NothingSent, BadBase64):
        assert decode_base64(text)
