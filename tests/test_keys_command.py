"""`ocrsvc keys`, and the audit log of what it does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file of the keys."""
    monkeypatch.setenv("OCRSVC_KEYS", f"sqlite:{tmp_path}/keys.sqlite")
    monkeypatch.delenv("SUDO_USER", raising=False)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The keys as JSON, by name."""
    capsys.readouterr()
    assert run(["keys", "list", "--json"]) == 0
    return {key["name"]: key for key in json.loads(capsys.readouterr().out)}


def gate_of(folder: Path) -> AccessGate:
    gate = AccessGate(open_store(f"sqlite:{folder}/keys.sqlite"))
    gate.refresh()
    return gate


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def test_add_prints_the_secret_alone_on_stdout_and_it_admits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "add", "acme"]) == 0
    printed = capsys.readouterr()
    assert SECRET.fullmatch(printed.out)
    assert "only time" in printed.err
    gate = gate_of(folder)
    assert gate.check(printed.out.strip(), "read", "api").name == "acme"
    gate.stop()


def test_every_option_of_add_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        *("--scope", "read", "--scope", "jobs", "--adapter", "api", "--adapter", "paddlex"),
        *("--requests-per-s", "2.5", "--concurrency", "4", "--pages-a-day", "100", "--pages-a-month", "2000"),
        *("--priority", "batch", "--no-cache", "--expires", "2999-01-31"),
    )
    assert run(["keys", "add", "acme", *options]) == 0
    key = listed(capsys)["acme"]
    assert (key["scopes"], key["adapters"], key["priority"], key["may_cache"]) == (
        *(["jobs", "read"], ["api", "paddlex"]),
        *("batch", False),
    )
    assert KeyLimits(**key["limits"]) == KeyLimits(2.5, 4, 100, 2000)
    # `date -u -d 2999-01-31 +%s`
    assert key["expires_at"] == 32_474_736_000
    assert key["state"] == "valid"
    assert (folder / "keys.sqlite").exists()


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("12h", 43_200), ("90d", 7_776_000)])
def test_a_key_may_end_after_some_time(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, seconds: float
) -> None:
    run(["keys", "add", "acme", "--expires", text])
    key = listed(capsys)["acme"]
    assert key["expires_at"] - key["created_at"] == seconds
    assert folder


def test_change_changes_what_is_given_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["keys", "add", "acme", "--pages-a-day", "100", "--concurrency", "4", "--expires", "90d"])
    secret = capsys.readouterr().out.strip()
    assert run(["keys", "change", "acme", "--pages-a-day", "none", "--pages-a-month", "7", "--expires", "never"]) == 0
    key = listed(capsys)["acme"]
    assert KeyLimits(**key["limits"]) == KeyLimits(None, 4, None, 7)
    assert (key["expires_at"], key["scopes"]) == (None, ["read"])
    gate = gate_of(folder)
    gate.check(secret, "read")
    gate.stop()


@pytest.mark.parametrize("options", [[], ["--pages-a-day", "100"]])
def test_a_change_of_nothing_says_so_and_is_not_audited(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    run(["keys", "add", "acme", "--pages-a-day", "100"])
    assert run(["keys", "change", "acme", *options]) == 0
    assert "nothing is changed" in capsys.readouterr().err
    assert len(lines_of(folder / "keys.sqlite.audit.jsonl")) == 1


def test_rotate_prints_a_new_secret_and_leaves_the_old_one_its_grace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["keys", "add", "acme"])
    old = capsys.readouterr().out.strip()
    assert run(["keys", "rotate", "acme", "--grace", "1h"]) == 0
    new = capsys.readouterr().out.strip()
    run(["keys", "rotate", "acme"])
    newest = capsys.readouterr().out.strip()
    gate = gate_of(folder)
    gate.check(newest)
    for secret in (old, new):
        with pytest.raises(KeyRefused):
            gate.check(secret)
    gate.stop()


def test_the_list_shows_what_was_used_and_no_secret(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["keys", "add", "acme", "--pages-a-day", "100"])
    run(["keys", "add", "gone", "--scope", "operate"])
    run(["keys", "revoke", "gone"])
    store = open_store(f"sqlite:{folder}/keys.sqlite")
    period = day_of(listed(capsys)["acme"]["created_at"])
    store.settle("acme", "w1", Hold(1, 3), 1, 12, period)
    store.close()
    assert run(["keys", "list"]) == 0
    head, acme, gone = (re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    assert dict(zip(head, acme, strict=True)) == {
        "name": "acme",
        "state": "valid",
        "scopes": "read",
        "formats": "all",
        "per second": "-",
        "at once": "-",
        "pages today": "12 of 100",
        "this month": "12",
        "priority": "interactive",
        "cache": "yes",
        "ends": "never",
    }
    assert gone[:3] == ["gone", "revoked", "operate"]
    assert listed(capsys)["acme"]["usage"] == {
        "pages_today": 12,
        "pages_this_month": 12,
        "pages_reserved": 3,
        "requests_under_way": 1,
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["add", "a b"], "cannot be the name"),
        (["add", "acme"], "There is a key named acme"),
        (["add", "x", "--adapter", "nothing"], "Accepted is all, api, trwebocr"),
        (["add", "x", "--expires", "soon"], "Accepted is 90d, 12h, 2027-01-31, or never"),
        (["add", "x", "--expires", "2001-01-01"], "which is over"),
        (["revoke", "nobody"], "There is no key named 'nobody'"),
        (["rotate", "nobody"], "There is no key named 'nobody'"),
        (["change", "nobody"], "There is no key named 'nobody'"),
        (["revoke", "gone"], "The key gone is revoked"),
        (["rotate", "gone"], "The key gone is revoked"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    for command in (["add", "acme"], ["add", "gone"], ["revoke", "gone"]):
        run(["keys", *command])
    before = listed(capsys)
    assert run(["keys", *argv]) == 78
    assert said in capsys.readouterr().err
    assert listed(capsys) == before
    assert len(lines_of(folder / "keys.sqlite.audit.jsonl")) == 3


@pytest.mark.parametrize(
    "options",
    [
        *(["--pages-a-day", number] for number in ("0", "-1", "1.5", "x", "99999999999999")),
        *(["--requests-per-s", number] for number in ("0", "nan", "inf")),
        *(["--scope", "admin"], ["--priority", "first"]),
    ],
    ids=" ".join,
)
def test_an_option_that_is_none_is_refused(folder: Path, options: list[str]) -> None:
    assert run(["keys", "add", "acme", *options]) == 2
    assert list(folder.iterdir()) == []


def test_without_a_store_the_command_says_which_setting_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OCRSVC_KEYS", raising=False)
    assert run(["keys", "list"]) == 78
    assert "OCRSVC_KEYS" in capsys.readouterr().err


def test_check_says_how_many_keys_there_are_and_makes_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "keys.sqlite"
    assert describe_keys(read_settings({})) == "off"
    assert describe_keys(read_settings()) == f"sqlite:{file}, none valid: see ocrsvc keys add"
    assert not file.exists()
    assert run(["keys", "add", "acme"]) == 0
    assert describe_keys(read_settings()) == f"sqlite:{file}, 1 valid"
    monkeypatch.setenv("OCRSVC_KEYS", f"sqlite:{folder}/nowhere/keys.sqlite")
    assert "nowhere/keys.sqlite cannot be used: " in describe_keys(read_settings())
    monkeypatch.setenv("OCRSVC_KEYS", "redis://:secret@127.0.0.1:1/0")
    assert describe_keys(read_settings()).startswith("redis://:***@127.0.0.1:1/0 cannot be used: ")


def test_each_action_is_a_line_of_the_audit_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["keys", "add", "acme", "--pages-a-day", "100"])
    run(["keys", "change", "acme", "--concurrency", "2"])
    run(["keys", "rotate", "acme", "--grace", "1h"])
    run(["keys", "revoke", "acme"])
    run(["keys", "list"])
    lines = lines_of(folder / "keys.sqlite.audit.jsonl")
    assert [(line["action"], line["name"]) for line in lines] == [
        (f"keys.{action}", "acme") for action in ("add", "change", "rotate", "revoke")
    ]
    assert all(line["who"].startswith("user:") for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", line["time"]) for line in lines)
    assert lines[0]["entry"]["limits"]["pages_a_day"] == 100
    assert lines[2]["grace_s"] == 3600
    secrets = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ocr_")]
    assert not any(secret in (folder / "keys.sqlite.audit.jsonl").read_text("utf-8") for secret in secrets)


def test_nothing_is_done_that_could_not_be_written_down(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCRSVC_AUDIT_LOG", str(folder / "nowhere" / "audit"))
    assert run(["keys", "add", "acme"]) == 78
    assert "The audit log" in capsys.readouterr().err
    assert listed(capsys) == {}


@pytest.mark.parametrize("action", ["add", "rotate"])
def test_a_secret_is_printed_though_the_disk_of_the_audit_log_is_full(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    if action == "rotate":
        run(["keys", "add", "acme"])
        capsys.readouterr()
    # It can be opened, and not written.
    monkeypatch.setenv("OCRSVC_AUDIT_LOG", "/dev/full")
    assert run(["keys", action, "acme"]) == 78
    printed = capsys.readouterr()
    assert "cannot be written: No space left on device. The keys were changed all the same." in printed.err
    gate = gate_of(folder)
    assert gate.check(printed.out.strip()).name == "acme"
    gate.stop()


def test_the_audit_log_says_by_whose_leave(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setenv("OCRSVC_AUDIT_LOG", str(folder / "audit"))
    run(["keys", "add", "acme"])
    assert lines_of(folder / "audit")[0]["who"].endswith(" (sudo by alice)")
    assert (folder / "audit").stat().st_mode & 0o777 == 0o600


def test_lines_of_the_audit_log_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    for number in range(2):
        AuditLog(tmp_path / "audit").write("key:ops", "workers.recycle", 0.0, worker=number)
    assert lines_of(tmp_path / "audit") == [
        {"time": "1970-01-01T00:00:00.000+00:00", "who": "key:ops", "action": "workers.recycle", "worker": number}
        for number in range(2)
    ]


def test_an_audit_log_on_a_full_disk_is_an_error() -> None:
    with pytest.raises(OperatorError, match="No space left"):
        AuditLog(Path("/dev/full")).write("key:ops", "workers.recycle", 0.0)


def test_the_callback_secret_of_a_key_is_printed_again_and_again_and_is_no_other_keys(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme", "other"):
        run(["keys", "add", name])
    capsys.readouterr()
    # The message is printed where main() catches it.
    assert run(["keys", "callback-secret", "acme"]) != 0
    assert "OCRSVC_CALLBACK_SECRET is not set" in capsys.readouterr().err
    monkeypatch.setenv("OCRSVC_CALLBACK_SECRET", "a secret of the service")
    printed = []
    for name in ("acme", "other", "acme"):
        assert run(["keys", "callback-secret", name]) == 0
        printed.append(capsys.readouterr().out)
    acme, other, again = printed
    assert acme == again != other
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=\n", acme)
    assert lines_of(folder / "keys.sqlite.audit.jsonl")[-1]["action"] == "keys.callback_secret"
