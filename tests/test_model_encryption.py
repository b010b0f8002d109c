"""Encrypted models: made by a command, read only with the key, and refused once changed."""

import base64
import hmac
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from image_support import png
from isolation_support import children_of
from models_support import make_fake, make_several, make_version
from support import clean_environment, read_data, start_server

from ocrsvc.cli.main import run
from ocrsvc.engines.model.encryption import CannotDecrypt, ModelKey, decrypt, encrypt, new_key, parse_key, read_head
from ocrsvc.engines.model.files import write_manifest
from ocrsvc.engines.model.key_source import read_model_key
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.open_engine import open_engine
from ocrsvc.errors import BadModel, SettingsError
from ocrsvc.models.importers.write_version import encrypt_model, write_version
from ocrsvc.models.proof.prover import Prover
from ocrsvc.models.repository import ModelRepository
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import plan_for
from ocrsvc.worker.hooks import open_model_key

KEY_BYTES = bytes(range(32))
KEY = ModelKey(bytes(range(32)))
SET = "0123456789abcdef" * 2
HEAD_BYTES = 64
TAG_BYTES = 16


@pytest.fixture(autouse=True)
def _keep_core_dumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test process keep its core dumps."""
    monkeypatch.setattr("ocrsvc.engines.model.key_source.forbid_core_dumps", lambda: None)


def encrypted(plain: bytes, name: str = "det.onnx", set_id: str = SET) -> bytes:
    return encrypt(plain, name, set_id, KEY)


def test_the_same_file_is_never_encrypted_to_the_same_bytes() -> None:
    one, other = (encrypted(bytes(100)) for _ in range(2))
    assert one[HEAD_BYTES:] != other[HEAD_BYTES:]
    assert read_head(one) == read_head(other)


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "cut to the head": lambda content: content[:HEAD_BYTES],
    "longer": lambda content: content + bytes(TAG_BYTES),
    "another bit": lambda content: content[:9999] + bytes([content[9999] ^ 1]) + content[10_000:],
    "another set": lambda content: content[:16] + bytes(16) + content[32:],
    "another salt": lambda content: content[:32] + bytes(32) + content[64:],
    "another head": lambda content: encrypted(bytes(len(content)))[:HEAD_BYTES] + content[HEAD_BYTES:],
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_changed_file_is_not_decrypted(harm: Callable[[bytes], bytes]) -> None:
    content = encrypted(os.urandom(20_000))
    with pytest.raises(CannotDecrypt, match="is damaged, or is not the file"):
        decrypt(harm(content), "det.onnx", KEY)


def test_an_encrypted_file_can_be_read_with_the_primitives_alone() -> None:
    """Follows the format's description in docs/design/models.md; uses no function of ocrsvc to decrypt."""
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
        # URL-safe base64.
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
    ("environ", "complaint"), read_data("model_encryption.json")["error for a missing key contains no secret"]
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


PR_GET_DUMPABLE = 3
MODEL = """
# A comment.
[detection]
file = "det.onnx"
[[recognition]]
file = "rec.onnx"
dictionary = "dict.txt"
"""
PARTS = {"det.onnx": b"detector" * 9000, "rec.onnx": b"recognizer" * 9000, "dict.txt": "的\n一\n".encode() * 500}
PAGE = {"reference/page.txt": b"reference text" * 100}


def plain(repository: Path, number: int = 1) -> ModelVersion:
    return make_version(repository, "mine", number, MODEL, {**PARTS, **PAGE})


def encrypted_version(repository: Path, number: int = 2, key: ModelKey = KEY) -> ModelVersion:
    write_version(encrypt_model(plain(repository / "plain"), key), repository, "mine", number)
    shutil.rmtree(repository / "plain")
    return ModelRepository(repository, key).open("mine", number)


def test_all_files_except_the_description_are_encrypted(tmp_path: Path) -> None:
    version = encrypted_version(tmp_path)
    for file, content in {**PARTS, **PAGE}.items():
        assert content[:20] not in (version.folder / file).read_bytes(), file
        assert version.read(file) == content
    assert "# A comment." in version.read("model.toml").decode()


@pytest.mark.parametrize(
    ("key", "is_installed", "reason", "remedy"),
    [
        (None, True, f"It is encrypted with the key {KEY.id}, but no key was given", "OCRSVC_MODELS_KEY"),
        (new_key(), True, "but the given key is", "OCRSVC_MODELS_KEY"),
        (KEY, False, "", ".[encrypt]"),
    ],
)
def test_missing_key_or_package_makes_a_bad_version_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: ModelKey | None, is_installed: bool, reason: str, remedy: str
) -> None:
    encrypted_version(tmp_path)
    if not is_installed:
        monkeypatch.setitem(sys.modules, "cryptography", None)
    [bad] = ModelRepository(tmp_path, key).scan().bad
    assert bad.lacks_key
    assert reason in bad.reason
    assert remedy in bad.reason


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (lambda one: {"det.onnx": one["rec.onnx"]}, "is not the file that was encrypted under this name"),
        (lambda _: {"det.onnx": PARTS["det.onnx"]}, "is not encrypted"),
        (lambda one: {"det.onnx": one["det.onnx"][:-1]}, "is damaged"),
        (
            lambda one: {"model.toml": re.sub(rb'set = "\w{32}', b'set = "' + b"0" * 32, one["model.toml"])},
            "was not encrypted together with the model.toml beside it",
        ),
        (lambda one: {"det.onnx": one["other"]}, "was not encrypted together with"),
    ],
    ids=["another file", "plain", "cut", "another description", "another version"],
)
def test_swapped_files_are_refused_although_the_manifest_matches(
    tmp_path: Path, files: Callable[[dict[str, bytes]], dict[str, bytes]], reason: str
) -> None:
    folder, other = encrypted_version(tmp_path).folder, encrypted_version(tmp_path, 3).folder
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for name, content in files({**before, "other": (other / "det.onnx").read_bytes()}).items():
        (folder / name).write_bytes(content)
    write_manifest(folder)
    with pytest.raises(BadModel, match=reason):
        ModelRepository(tmp_path, KEY).open("mine", 2).read("det.onnx")


def test_encrypted_models_and_models_opened_by_path_cannot_be_encrypted(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"mine/2 is already encrypted\."):
        encrypt_model(encrypted_version(tmp_path), KEY)
    of_tr = make_version(tmp_path, "tr", 1, 'engine = "tr"\n[settings]\ntr_home = "./"', {"libtr.so": b""})
    with pytest.raises(BadModel, match=r"the engine tr opens files by path \(tr_home\)"):
        encrypt_model(of_tr, KEY)


def test_child_process_receives_the_key_and_opens_the_model(tmp_path: Path) -> None:
    make_fake(tmp_path / "plain", 1)
    write_version(encrypt_model(ModelRepository(tmp_path / "plain").open("fake", 1), KEY), tmp_path, "fake", 7)
    version = ModelRepository(tmp_path, KEY).open("fake", 7)
    settings = read_settings({"OCRSVC_ISOLATION": "process", "OCRSVC_MODELS": str(tmp_path)})
    engine = open_engine(settings, plan_for(settings, workers=1, threads=1), model=version)
    try:
        assert engine.describe().version == "7"
        [fork_server] = children_of(os.getpid())
        for pid in (fork_server, *children_of(fork_server)):
            assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
            assert KEY.expose().encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert KEY.expose().encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    finally:
        engine.close()


def settings_with(repository: Path, key: ModelKey | None) -> Settings:
    given = {} if key is None else {"OCRSVC_MODELS_KEY": key.expose()}
    return read_settings({"OCRSVC_MODELS": str(repository), **given})


def test_start_fails_if_the_key_of_the_newest_version_is_missing(tmp_path: Path) -> None:
    encrypted_version(tmp_path)
    for key in (None, new_key()):
        with pytest.raises(SettingsError, match=r"mine/2: It is encrypted with the key"):
            ModelRepository(tmp_path, key).check_key()
    ModelRepository(tmp_path, KEY).check_key()


@pytest.mark.parametrize(("policy", "is_wanted"), read_data("model_encryption.json")["wanted by a policy"])
def test_start_checks_the_keys_of_versions_that_a_policy_wants(tmp_path: Path, policy: str, is_wanted: bool) -> None:
    encrypted_version(tmp_path)
    plain(tmp_path, 3)
    (tmp_path / "models.toml").write_text(policy)
    with pytest.raises(SettingsError, match="mine/2: It is encrypted") if is_wanted else nullcontext():
        ModelRepository(tmp_path).check_key()


def test_reload_runs_the_key_command_again_but_keeps_a_descriptors_key(tmp_path: Path) -> None:
    kept = open_model_key(read_settings({"OCRSVC_MODELS_KEY_FD": "999"}), KEY, is_start=False)
    assert kept is KEY
    of_command = {"OCRSVC_MODELS_KEY_COMMAND": f"cat {tmp_path / 'key'}"}
    (tmp_path / "key").write_text(other := bytes(32).hex())
    found = open_model_key(read_settings(of_command), KEY, is_start=False)
    assert found is not None
    assert found.expose() == ModelKey(bytes.fromhex(other)).expose()


def test_reload_without_the_key_variable_keeps_the_key(tmp_path: Path) -> None:
    encrypted_version(tmp_path)
    assert open_model_key(settings_with(tmp_path, None), KEY, is_start=False) is KEY
    with pytest.raises(SettingsError):
        open_model_key(settings_with(tmp_path, new_key()), KEY, is_start=False)


def test_the_command_encrypts_and_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain(tmp_path)
    monkeypatch.setenv("OCRSVC_MODELS", str(tmp_path))
    assert run(["models", "encrypt", "mine/1"]) == 78
    assert "No model key is configured" in capsys.readouterr().err
    assert run(["models", "new-key"]) == 0
    key = capsys.readouterr().out.strip()
    monkeypatch.setenv("OCRSVC_MODELS_KEY", key)
    assert run(["models", "encrypt", "mine/1", "--to", "5"]) == 0
    assert run(["models", "encrypt", str(tmp_path / "mine" / "1")]) == 0
    assert run(["models", "list"]) == 0
    printed = capsys.readouterr().out
    assert "mine/5 is encrypted with the key" in printed
    assert "mine/6 is encrypted with the key" in printed
    assert "bad" not in printed
    assert key not in printed
    assert ModelRepository(tmp_path).scan().numbers("mine") == (1,)


def test_a_service_hides_its_key_and_forbids_core_dumps(tmp_path: Path) -> None:
    key = KEY.expose()
    with start_server(make_several(tmp_path) | {"OCRSVC_MODELS_KEY": key}) as server:
        server.wait_for("READY in")
        for pid in (server.pid, *server.workers()):
            assert key.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        assert key not in server.log


def test_process_with_a_key_is_not_dumpable() -> None:
    program = "from ocrsvc.system.sandbox import forbid_core_dumps; import ctypes; forbid_core_dumps(); "
    code = f"{program} print(ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}))"
    ended = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, check=True)
    assert ended.stdout == b"0\n"


def test_proof_decrypts_the_version_and_its_reference_pages(tmp_path: Path) -> None:
    page = png(8, 8, 255)
    pages = {"reference/one.png": page, "reference/one.txt": b"alpha beta"}
    model = 'engine = "fake"\n[settings]\nfake_text = "alpha beta"\n[reference]\nleast_f1 = 0.4\n'
    make_version(tmp_path / "plain", "fake", 1, model, pages)
    made = encrypt_model(ModelRepository(tmp_path / "plain").open("fake", 1), KEY)
    write_version(made, tmp_path, "fake", 7)
    settings = read_settings({"OCRSVC_ENGINE": "fake", "OCRSVC_MODELS": str(tmp_path)})
    prover = Prover(settings, plan_for(settings, workers=1, threads=1), bool)
    found = prover.prove(ModelRepository(tmp_path, KEY).open("fake", 7), None)
    assert found.kind is None, found.reason
    assert "of the words of the reference texts" in found.reason
