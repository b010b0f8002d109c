"""Encrypted models: they are read with their key only, and not once anything of them was changed."""

from __future__ import annotations

import base64
import hmac
import os
import pickle
import sys
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ocrsvc.engines.model.encryption import (
    CannotDecrypt,
    ModelKey,
    decrypt,
    encrypt,
    new_key,
    parse_key,
    read_head,
)
from ocrsvc.engines.model.key_source import read_model_key
from ocrsvc.errors import SettingsError
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings

KEY_BYTES = bytes(range(32))
KEY = ModelKey(KEY_BYTES)
SET = "0123456789abcdef" * 2
HEAD_BYTES = 64
TAG_BYTES = 16


@pytest.fixture(autouse=True)
def _keep_core_dumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the process that runs the tests."""
    monkeypatch.setattr("ocrsvc.engines.model.key_source.forbid_core_dumps", lambda: None)


def encrypted(plain: bytes, name: str = "det.onnx", set_id: str = SET) -> bytes:
    return encrypt(plain, name, set_id, KEY)


@pytest.mark.parametrize("length", [0, 1, 3 << 20])
def test_encrypted_content_is_decrypted(length: int) -> None:
    plain = os.urandom(length)
    content = encrypted(plain)
    assert decrypt(content, "det.onnx", KEY) == plain
    assert len(content) == HEAD_BYTES + length + TAG_BYTES


def test_the_same_file_is_never_encrypted_to_the_same_bytes() -> None:
    one, other = (encrypted(bytes(100)) for _ in range(2))
    assert one[HEAD_BYTES:] != other[HEAD_BYTES:]
    assert read_head(one) == read_head(other)


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "cut to the head": lambda content: content[:HEAD_BYTES],
    "longer": lambda content: content + bytes(TAG_BYTES),
    "another bit": lambda content: content[:9999] + bytes([content[9999] ^ 1]) + content[10_000:],
    "of another set": lambda content: content[:16] + bytes(16) + content[32:],
    "another salt": lambda content: content[:32] + bytes(32) + content[64:],
    "the head of another": lambda content: encrypted(bytes(len(content)))[:HEAD_BYTES] + content[HEAD_BYTES:],
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_changed_file_is_not_decrypted(harm: Callable[[bytes], bytes]) -> None:
    content = encrypted(os.urandom(20_000))
    with pytest.raises(CannotDecrypt, match="is damaged, or is not the file"):
        decrypt(harm(content), "det.onnx", KEY)


def test_errors_distinguish_another_name_a_wrong_key_and_a_plain_file() -> None:
    content, other = encrypted(b"model", "det.onnx"), new_key()
    for data, name, key, said in (
        (content, "rec.onnx", KEY, "not the file that was encrypted under this name"),
        (content, "det.onnx", other, f"^is encrypted with the key {KEY.id}, but the given key is {other.id}$"),
        (b"plain", "det.onnx", KEY, "is not encrypted"),
    ):
        with pytest.raises(CannotDecrypt, match=said):
            decrypt(data, name, key)


def test_an_encrypted_file_can_be_read_with_the_primitives_alone() -> None:
    """By the description of the format in docs/design/models.md, in its words and no function of ours."""
    content = encrypted(b"model", "det.onnx")
    head, salt = content[:HEAD_BYTES], content[32:HEAD_BYTES]
    of_use = hmac.digest(bytes(range(32)), b"ocrsvc: key of model files", "sha256")
    pseudorandom = hmac.digest(salt, of_use, "sha256")
    of_file = hmac.digest(pseudorandom, b"ocrsvc: one file" + b"\x01", "sha256")
    assert AESGCM(of_file).decrypt(bytes(12), content[HEAD_BYTES:], head + b"det.onnx") == b"model"


def test_key_is_printed_as_its_id() -> None:
    text = KEY.expose()
    assert text not in f"{KEY} {KEY!r} {[KEY]}"
    assert KEY.id in repr(KEY)
    with pytest.raises(TypeError):
        pickle.dumps(KEY)


ODD = b"\xfb\xff" * 16


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (KEY_BYTES.hex(), KEY_BYTES),
        (KEY_BYTES.hex().upper(), KEY_BYTES),
        (KEY.expose(), KEY_BYTES),
        (KEY.expose().rstrip("=") + "\n", KEY_BYTES),
        # Base64 for addresses.
        (base64.urlsafe_b64encode(ODD).decode(), ODD),
    ],
)
def test_key_is_parsed_from_hexadecimal_digits_or_base64(text: str, secret: bytes) -> None:
    assert parse_key(text).id == ModelKey(secret).id


@pytest.mark.parametrize("text", ["", "abc", "00" * 31, "0" * 65, "é" * 43, "A" * 42 + "!"])
def test_invalid_key_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not a key$"):
        parse_key(text)


def open_with(content: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def test_the_key_comes_from_a_variable_a_descriptor_or_a_command() -> None:
    assert read_model_key(read_settings({})) is None
    descriptor = open_with(KEY.expose().encode() + b"\n")
    command = f"{sys.executable} -c 'print(\"{KEY.expose()}\")'"
    for environ in (
        {"OCRSVC_MODELS_KEY": KEY.expose()},
        {"OCRSVC_MODELS_KEY_FD": str(descriptor)},
        {"OCRSVC_MODELS_KEY_COMMAND": command},
    ):
        found = read_model_key(read_settings(environ))
        assert found is not None
        assert found.id == KEY.id
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"OCRSVC_MODELS_KEY": "s3cret"}, "OCRSVC_MODELS_KEY is not a model key: accepted are 32 bytes"),
        ({"OCRSVC_MODELS_KEY_FD": "999"}, "OCRSVC_MODELS_KEY_FD is 999, which cannot be read"),
        ({"OCRSVC_MODELS_KEY_COMMAND": "/nowhere s3cret"}, "OCRSVC_MODELS_KEY_COMMAND cannot be run"),
        ({"OCRSVC_MODELS_KEY_COMMAND": "echo s3cret"}, "OCRSVC_MODELS_KEY_COMMAND is not a model key"),
        ({"OCRSVC_MODELS_KEY_COMMAND": "sh -c 'exit 3' s3cret"}, "OCRSVC_MODELS_KEY_COMMAND: sh ended with code 3"),
        ({"OCRSVC_MODELS_KEY_COMMAND": "'"}, "OCRSVC_MODELS_KEY_COMMAND cannot be run"),
        (
            {"OCRSVC_MODELS_KEY": "s3cret", "OCRSVC_MODELS_KEY_FD": "3"},
            "OCRSVC_MODELS_KEY and OCRSVC_MODELS_KEY_FD are set",
        ),
    ],
)
def test_error_for_a_missing_key_contains_no_secret(environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_model_key(read_settings(environ))
    assert str(caught.value).startswith(complaint)
    assert "s3cret" not in str(caught.value)
    assert caught.value.exit_code == 78


def test_endless_descriptor_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.engines.model.key_source.LIMIT_S", 0.0)
    reading, writing = os.pipe()
    try:
        with pytest.raises(SettingsError, match="did not reach its end within 0 s"):
            read_model_key(read_settings({"OCRSVC_MODELS_KEY_FD": str(reading)}))
    finally:
        os.close(reading)
        os.close(writing)


def test_key_command_is_printed_nowhere() -> None:
    settings = Settings.model_validate({"models_key_command": "ask-for-key --token s3cret"})
    assert "s3cret" not in f"{settings!r} {settings.model_dump_json()}"
    assert settings.models_key_command is not None
