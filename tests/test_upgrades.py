"""Removed settings name their replacement; upgrading the package under load fails no request."""

import os
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from proxies import CLIENTS, ENV, reading_clients, texts_of
from support import ROOT, wait_until
from upgrade_support import Changes, HeldSocket, replace_package, serving, version_of, write_package

from ocrsvc.errors import SettingsError
from ocrsvc.settings.load import REPLACED, read_settings

# Settings removed before version 0.1.0.
REMOVED = {"BODY_BYTES": "268435456", "QUEUE_BYTES": "134217728"}


@pytest.mark.parametrize("name", REMOVED)
def test_removed_setting_names_its_replacement(name: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({f"OCRSVC_{name}": REMOVED[name]})
    assert f"OCRSVC_{name} is no longer a setting: use OCRSVC_REQUEST_MEMORY_BYTES." in str(raised.value)
    assert REMOVED[name] not in str(raised.value)
    assert f"`OCRSVC_{name}`" in (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    assert {name.upper() for name in REPLACED} == REMOVED.keys()


# A slow engine leaves processor time for starting workers.
SLOW = {**ENV, "OCRSVC_FAKE_LATENCY_S": "0.2"}


def wait_for_answers(outcomes: Counter[str]) -> None:
    answered = outcomes.total()
    wait_until(lambda: outcomes.total() > answered + 2 * CLIENTS, "answers")


INCOMPATIBLE = {
    "ocrsvc/errors.py": ("class OperatorError(", "NEW_NAME = 1\n\n\nclass OperatorError("),
    "ocrsvc/app.py": ("from flask import Flask", "from ocrsvc.errors import NEW_NAME"),
}


# Second case: new workers inherit the arbiter's old ocrsvc.errors, which the new ocrsvc.app does not fit.
@pytest.mark.parametrize(
    ("changes", "logged", "answering"),
    [
        ({}, "ocrsvc 0.2.0 is installed, but this arbiter runs 0.1.0", "0.2.0"),
        (INCOMPATIBLE, "died before it was ready", "0.1.0"),
    ],
    ids=["new code", "incompatible new code"],
)
def test_sighup_loads_new_code_and_fails_nothing(tmp_path: Path, changes: Changes, logged: str, answering: str) -> None:
    write_package(tmp_path, "0.1.0")
    with serving(tmp_path, SLOW) as server, reading_clients(server.url, texts_of(server.url)) as outcomes:
        assert version_of(server.url) == "0.1.0"
        replace_package(tmp_path, "0.2.0", changes)
        os.kill(server.pid, signal.SIGHUP)
        if not changes:
            server.wait_for("RECYCLED worker .*: reload", count=2)
        server.wait_for(logged)
        wait_for_answers(outcomes)
        assert version_of(server.url) == answering
    assert set(outcomes) == {"right"}, outcomes


@pytest.mark.timeout(300)
def test_restart_with_a_held_socket_fails_no_request(tmp_path: Path) -> None:
    write_package(tmp_path, "0.1.0")
    with closing(HeldSocket(tmp_path, SLOW)) as held:
        service = held.start()
        try:
            with reading_clients(held.url, texts_of(held.url)) as outcomes:
                assert held.stop(service) == 0
                replace_package(tmp_path, "0.2.0")
                service = held.start()
                wait_for_answers(outcomes)
                assert version_of(held.url) == "0.2.0"
        finally:
            assert held.stop(service) == 0
    assert set(outcomes) == {"right"}, outcomes
