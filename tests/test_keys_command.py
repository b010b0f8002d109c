"""`ocrsvc keys` and its audit log."""

import json
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import data_of

from ocrsvc.access.api_keys import KeyLimits
from ocrsvc.access.audit_log import AuditLog
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_store import Hold, day_of
from ocrsvc.access.manage_keys import open_store
from ocrsvc.cli.check import describe_keys
from ocrsvc.cli.main import run
from ocrsvc.errors import KeyRefused, OperatorError
from ocrsvc.settings.load import read_settings

SECRET = re.compile(r"ocr_[0-9a-f]{12}_[A-Za-z0-9_-]{43}\n")
AUDIT_LOG = "keys.sqlite.audit.jsonl"


@dataclass(frozen=True)
class Command:
    """`ocrsvc keys` with a key file in a temporary folder."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *argv: str, code: int = 0) -> Any:
        """Run the command, require the exit code, and return its output."""
        self.capsys.readouterr()
        assert run(["keys", *argv]) == code
        return self.capsys.readouterr()

    def listed(self) -> dict[str, Any]:
        """The listed keys by name."""
        return {key["name"]: key for key in json.loads(self("list", "--json").out)}

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / AUDIT_LOG).read_text("utf-8").splitlines()]

    def is_accepted(self, secret: str) -> bool:
        """Whether a service accepts this secret."""
        gate = AccessGate(open_store(f"sqlite:{self.folder}/keys.sqlite"))
        gate.refresh()
        try:
            return gate.check(secret.strip(), "read", "api").name == "acme"
        except KeyRefused:
            return False
        finally:
            gate.stop()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("OCRSVC_KEYS", f"sqlite:{tmp_path}/keys.sqlite")
    monkeypatch.delenv("SUDO_USER", raising=False)
    return Command(tmp_path, capsys)


def test_add_prints_only_a_valid_secret_on_stdout(keys: Command) -> None:
    printed = keys("add", "acme")
    assert SECRET.fullmatch(printed.out)
    assert "shown only now" in printed.err
    assert keys.is_accepted(printed.out)


def test_add_stores_every_option(keys: Command) -> None:
    keys(
        *("add", "acme", "--scope", "read", "--scope", "jobs", "--adapter", "api", "--adapter", "paddlex"),
        *("--requests-per-s", "2.5", "--concurrency", "4", "--pages-a-day", "100", "--pages-a-month", "2000"),
        *("--priority", "batch", "--no-cache", "--expires", "2999-01-31"),
    )
    key = keys.listed()["acme"]
    assert (key["scopes"], key["adapters"]) == (["jobs", "read"], ["api", "paddlex"])
    assert (key["priority"], key["may_cache"], key["state"]) == ("batch", False, "valid")
    assert KeyLimits(**key["limits"]) == KeyLimits(2.5, 4, 100, 2000)
    # `date -u -d 2999-01-31 +%s`
    assert key["expires_at"] == 32_474_736_000


def test_keys_expire_after_a_duration(keys: Command) -> None:
    for text, seconds in (("90s", 90), ("30m", 1800), ("12h", 43_200), ("90d", 7_776_000)):
        keys("add", text, "--expires", text)
        key = keys.listed()[text]
        assert key["expires_at"] - key["created_at"] == seconds


def test_change_modifies_only_the_given_options(keys: Command) -> None:
    secret = keys("add", "acme", "--pages-a-day", "100", "--concurrency", "4", "--expires", "90d").out
    keys("change", "acme", "--pages-a-day", "none", "--pages-a-month", "7", "--expires", "never")
    key = keys.listed()["acme"]
    assert KeyLimits(**key["limits"]) == KeyLimits(None, 4, None, 7)
    assert (key["expires_at"], key["scopes"]) == (None, ["read"])
    for options in ([], ["--pages-a-month", "7"]):
        assert "nothing changed" in keys("change", "acme", *options).err
    assert len(keys.audited()) == 2
    assert keys.is_accepted(secret)


def test_rotate_prints_a_new_secret_and_keeps_the_old_for_its_grace(keys: Command) -> None:
    secrets = [keys("add", "acme").out, keys("rotate", "acme", "--grace", "1h").out]
    assert [keys.is_accepted(secret) for secret in secrets] == [True, True]
    secrets.append(keys("rotate", "acme").out)
    assert [keys.is_accepted(secret) for secret in secrets] == [False, False, True]


def test_the_list_shows_usage_and_no_secret(keys: Command) -> None:
    keys("add", "acme", "--pages-a-day", "100")
    keys("add", "gone", "--scope", "operate")
    keys("revoke", "gone")
    with closing(open_store(f"sqlite:{keys.folder}/keys.sqlite")) as store:
        store.settle("acme", "w1", Hold(1, 3), 1, 12, day_of(keys.listed()["acme"]["created_at"]))
    head, acme, gone = (re.split(r"\s{2,}", line) for line in keys("list").out.splitlines())
    assert head[:8] == ["name", "state", "scopes", "formats", "per second", "at once", "pages today", "this month"]
    assert acme[:8] == ["acme", "valid", "read", "all", "-", "-", "12 of 100", "12"]
    assert dict(zip(head[8:], acme[8:], strict=True)) == {"priority": "interactive", "cache": "yes", "ends": "never"}
    assert gone[:3] == ["gone", "revoked", "operate"]
    counts = {"pages_today": 12, "pages_this_month": 12, "pages_reserved": 3, "requests_under_way": 1}
    assert keys.listed()["acme"]["usage"] == counts


@pytest.mark.parametrize(("argv", "said"), data_of("keys_command")["failed"], ids=str)
def test_failed_command_explains_itself_and_changes_nothing(keys: Command, argv: list[str], said: str) -> None:
    for command in (["add", "acme"], ["add", "gone"], ["revoke", "gone"]):
        keys(*command)
    before = keys.listed()
    assert said in keys(*argv, code=78).err
    assert keys.listed() == before
    assert len(keys.audited()) == 3


def test_invalid_options_are_refused(keys: Command) -> None:
    for option, values in data_of("keys_command")["invalid_options"].items():
        for value in values:
            keys("add", "acme", option, value, code=2)
    assert list(keys.folder.iterdir()) == []


def test_check_counts_keys_and_creates_no_file(keys: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    file = keys.folder / "keys.sqlite"
    assert describe_keys(read_settings({})) == "off"
    assert describe_keys(read_settings()) == f"sqlite:{file}, none valid: see ocrsvc keys add"
    assert not file.exists()
    keys("add", "acme")
    assert describe_keys(read_settings()) == f"sqlite:{file}, 1 valid"
    for address, said in (
        (f"sqlite:{keys.folder}/nowhere/keys.sqlite", "nowhere/keys.sqlite cannot be used: "),
        ("redis://:secret@127.0.0.1:1/0", "redis://:***@127.0.0.1:1/0 cannot be used: "),
    ):
        monkeypatch.setenv("OCRSVC_KEYS", address)
        assert said in describe_keys(read_settings())
        assert "cannot be used" in keys("add", "acme", code=75).err


def test_audit_log_has_each_action_and_no_secret(keys: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    secrets = keys("add", "acme", "--pages-a-day", "100").out
    keys("change", "acme", "--concurrency", "2")
    secrets += keys("rotate", "acme", "--grace", "1h").out
    keys("revoke", "acme")
    keys("list")
    # An action that cannot be logged is refused.
    monkeypatch.setenv("OCRSVC_AUDIT_LOG", str(keys.folder / "nowhere" / "audit"))
    assert "The audit log" in keys("add", "other", code=78).err
    monkeypatch.delenv("OCRSVC_KEYS")
    assert "OCRSVC_KEYS" in keys("list", code=78).err
    lines = keys.audited()
    actions = [(f"keys.{action}", "acme") for action in ("add", "change", "rotate", "revoke")]
    assert [(line["action"], line["name"]) for line in lines] == actions
    assert all(re.fullmatch(r"user:.* \(sudo by alice\)", line["who"]) for line in lines)
    assert (keys.folder / AUDIT_LOG).stat().st_mode & 0o777 == 0o600
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", line["time"]) for line in lines)
    assert (lines[0]["entry"]["limits"]["pages_a_day"], lines[2]["grace_s"]) == (100, 3600)
    assert not any(secret in (keys.folder / AUDIT_LOG).read_text("utf-8") for secret in secrets.split())


@pytest.mark.parametrize("action", ["add", "rotate"])
def test_full_audit_log_still_prints_the_secret(keys: Command, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    if action == "rotate":
        keys("add", "acme")
    # This file can be opened but not written.
    monkeypatch.setenv("OCRSVC_AUDIT_LOG", "/dev/full")
    printed = keys(action, "acme", code=78)
    assert "cannot be written: No space left on device. The action took effect anyway." in printed.err
    assert keys.is_accepted(printed.out)
    with pytest.raises(OperatorError, match="No space left"):
        AuditLog(Path("/dev/full")).write("key:ops", "workers.recycle", 0.0)


def test_each_key_has_a_callback_secret_that_stays(keys: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("acme", "other"):
        keys("add", name)
    assert "OCRSVC_CALLBACK_SECRET is not set" in keys("callback-secret", "acme", code=78).err
    monkeypatch.setenv("OCRSVC_CALLBACK_SECRET", "a secret of the service")
    acme, other, again = (keys("callback-secret", name).out for name in ("acme", "other", "acme"))
    assert acme == again != other
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=\n", acme)
    assert keys.audited()[-1]["action"] == "keys.callback_secret"
