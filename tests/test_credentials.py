"""The key in a request's headers, and the key that the client library and commands send."""

import base64
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import data_of, filled

from ocrsvc.access.api_keys import MAX_SECRET_CHARS, credential_of, hide_secrets, make_secret
from ocrsvc.cli.service import read_key
from ocrsvc.client.request import common_headers
from ocrsvc.errors import BadOption, OperatorError
from ocrsvc.settings.load import read_settings

SECRET = "ocr_live-0123456789"


# Name and password pairs of HTTP Basic authentication.
PAIRS = {"NAMED": f"anna:{SECRET}", "PASSWORD": f":{SECRET}", "NAME": f"{SECRET}:", "ALONE": SECRET, "EMPTY": ":"}
TEXTS = {name: base64.b64encode(text.encode()).decode() for name, text in PAIRS.items()}


@pytest.mark.parametrize(
    ("authorization", "others", "secret", "by_browser"), filled(data_of("client_keys")["found"], SECRET=SECRET, **TEXTS)
)
def test_key_is_found_in_headers(authorization: str, others: list[str], secret: str, *, by_browser: bool) -> None:
    found = credential_of(authorization, *others)
    assert (found.secret, found.by_browser) == (secret, by_browser)


@given(st.text(max_size=300), st.text(max_size=300))
def test_credentials_are_short_and_never_printed(authorization: str, other: str) -> None:
    found = credential_of(authorization, other)
    assert len(found.secret) <= MAX_SECRET_CHARS + 1
    assert repr(found) in {"Credential(by_browser=False)", "Credential(by_browser=True)"}


@pytest.mark.parametrize(
    "escaped", [slice(0), slice(0, 1), slice(3, 4), slice(9, 10), slice(16, 17), slice(40, 50), slice(99)]
)
@pytest.mark.parametrize("form", ["%{:02x}", "%{:02X}"])
def test_keys_in_logged_urls_are_hidden_in_any_encoding(form: str, escaped: slice) -> None:
    characters = list(make_secret()[0])
    characters[escaped] = [form.format(ord(character)) for character in characters[escaped]]
    line = logging.makeLogRecord({"msg": "%s /?key=%s&x=1", "args": ("GET", "".join(characters))})
    assert hide_secrets(line)
    assert line.getMessage() == f"GET /?key={''.join(characters[:17])}…&x=1"


@pytest.mark.parametrize(
    ("environment", "given_key", "headers", "sent"), filled(data_of("client_keys")["sent"], SECRET=SECRET)
)
def test_client_sends_the_given_or_the_environments_key(
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    given_key: str | None,
    headers: Mapping[str, str] | None,
    sent: Mapping[str, str],
) -> None:
    monkeypatch.setenv("OCRSVC_API_KEY", environment)
    assert common_headers(headers, given_key) == sent


def test_malformed_keys_are_refused_and_not_echoed() -> None:
    with pytest.raises(BadOption) as raised:
        common_headers(None, "a secret\r\nX-Evil: 1")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe", b"x" * 2000])
def test_file_without_a_key_is_refused_and_not_echoed(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(OperatorError, match="is not a key file") as raised:
        read_key(file)
    assert "two words" not in str(raised.value)
    with pytest.raises(OperatorError, match="cannot be read"):
        read_key(tmp_path / "nowhere")


def test_the_clients_key_is_not_a_setting_of_the_service() -> None:
    assert read_settings({"OCRSVC_API_KEY": SECRET}) == read_settings({})
