"""The gate: who is admitted with which key, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from keys_support import admit, answer
from support import wait_until

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, KeyPriority
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_secrets import digest_of, make_secret
from ocrsvc.access.key_store import Usage, period_of
from ocrsvc.access.manage_keys import add_key, change_key, key_named, revoke_key, rotate_key
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.errors import (
    KeyMissing,
    KeyRefused,
    KeysUnavailable,
    OcrsvcError,
    OperatorError,
    PagesOverQuota,
    QuotaExceeded,
    ScopeMissing,
)
from ocrsvc.serving.work_queue import PRIORITIES

# 2027-03-31 23:00:00 UTC, an hour before the day and the month end.
NOW_S = 1_806_534_000.0
ACME = KeyEntry("acme", created_at=NOW_S)


class Setup:
    """A gate over a file, and clocks that stand still.

    Attributes:
        now: Unix seconds; the first entry counts.
        monotonic: Monotonic seconds of the gate.
    """

    def __init__(self, path: Path) -> None:
        self.now, self.monotonic = [NOW_S], [100.0]
        self.store = SqliteStore(path, lambda: 5.0)
        self.gate = AccessGate(self.store, "w1", lambda: self.now[0], lambda: self.monotonic[0])
        self.gate.refresh()

    def add(self, entry: KeyEntry = ACME) -> str:
        secret = add_key(self.store, entry)
        self.gate.refresh()
        return secret

    def used(self, name: str = "acme") -> Usage:
        return self.store.usage(name, period_of(self.now[0]))


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    found = Setup(tmp_path / "keys.sqlite")
    with closing(found.store):
        yield found


def refusal(setup: Setup, secret: str | None) -> OcrsvcError:
    with pytest.raises(OcrsvcError) as refused:
        admit(setup.gate, secret, "read", "api", 1)
    return refused.value


def test_a_key_admits_and_its_pages_are_counted(setup: Setup) -> None:
    secret = setup.add()
    admission = admit(setup.gate, secret, "read", "api", 1)
    assert admission.entry == ACME
    answer(admission, 1)
    admission.release()
    assert setup.used() == Usage(today=1, this_month=1)


def test_without_a_key_the_answer_says_how_to_send_one(setup: Setup) -> None:
    setup.add()
    for secret in (None, ""):
        error = refusal(setup, secret)
        assert isinstance(error, KeyMissing)
        assert "Authorization: Bearer" in error.remedy


def test_wrong_revoked_and_expired_keys_have_one_answer(setup: Setup) -> None:
    good, revoked = setup.add(), setup.add(replace(ACME, name="revoked"))
    expired = setup.add(replace(ACME, name="expired", expires_at=NOW_S + 60))
    rotated = setup.add(replace(ACME, name="rotated"))
    rotate_key(setup.store, "rotated", 60.0, NOW_S)
    revoke_key(setup.store, "revoked", NOW_S)
    setup.gate.refresh()
    setup.now[0] += 60
    wrong_end = good[:-1] + ("A" if good[-1] != "A" else "B")
    unknown = make_secret()[0]
    texts = (revoked, expired, rotated, wrong_end, unknown, "x", good + "x", "ocr_" + "é" * 60, "\udcff", "a" * 10_000)
    answers = [refusal(setup, text) for text in texts]
    assert {(type(error), str(error), error.status, error.code) for error in answers} == {
        (KeyRefused, str(answers[0]), 401, "key_refused")
    }
    admit(setup.gate, good, "read")


def test_a_key_is_good_for_its_scopes_and_formats_only(setup: Setup) -> None:
    reader = setup.add(replace(ACME, name="reader", adapters=frozenset({"paddlex"})))
    operator = setup.add(replace(ACME, name="operator", scopes=frozenset({"operate"})))
    admit(setup.gate, reader, "read", "paddlex")
    admit(setup.gate, operator, "operate")
    for secret, scope, adapter in ((reader, "jobs", "paddlex"), (reader, "read", "api"), (operator, "read", "api")):
        with pytest.raises(ScopeMissing) as refused:
            admit(setup.gate, secret, scope, adapter)  # type: ignore[arg-type]
        assert refused.value.status == 403


def test_an_old_secret_is_good_until_its_grace_ends(setup: Setup) -> None:
    old = setup.add()
    new = rotate_key(setup.store, "acme", 60.0, NOW_S)
    setup.gate.refresh()
    for secret in (old, new):
        answer(admit(setup.gate, secret, "read"), 1)
    setup.now[0] += 61
    assert isinstance(refusal(setup, old), KeyRefused)
    admit(setup.gate, new, "read")
    # What was used is the key's, whichever secret it was used with.
    assert setup.store.usage("acme", period_of(NOW_S)).today == 2


def test_a_rotation_without_grace_ends_the_old_secret(setup: Setup) -> None:
    old = setup.add()
    rotate_key(setup.store, "acme", 0.0, NOW_S)
    setup.gate.refresh()
    assert isinstance(refusal(setup, old), KeyRefused)


def test_a_change_of_a_key_is_seen_at_the_next_look(setup: Setup) -> None:
    secret = setup.add()
    change_key(setup.store, key_named(setup.store, "acme"), replace(ACME, limits=KeyLimits(pages_a_day=1)))
    setup.gate.refresh()
    answer(admit(setup.gate, secret, "read", pages=1), 1)
    assert isinstance(refusal(setup, secret), QuotaExceeded)


def test_a_revoked_key_ends_within_a_second_of_a_running_gate(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        secret = add_key(store, ACME)
        gate = AccessGate(SqliteStore(tmp_path / "keys.sqlite"), "w1")
        gate.start()
        wait_until(lambda: gate.is_ready, "the keys are known")
        admit(gate, secret, "read")
        revoke_key(store, "acme", NOW_S)

        def is_refused() -> bool:
            try:
                gate.check(secret)
            except KeyRefused:
                return True
            return False

        wait_until(is_refused, "it is refused")
        gate.stop()


def test_a_quota_is_answered_429_with_when_there_is_more(setup: Setup) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(pages_a_day=3, pages_a_month=50)))
    answer(admit(setup.gate, secret, "read", pages=2), 2)
    with pytest.raises(QuotaExceeded) as refused:
        admit(setup.gate, secret, "read", pages=2)
    error = refused.value
    assert (error.status, error.retryable, error.retry_after_s) == (429, True, 3600)
    assert error.headers == {
        "RateLimit-Policy": '"pages-a-day";q=3;w=86400, "pages-a-month";q=50;w=2678400',
        "RateLimit": '"pages-a-day";r=1;t=3600, "pages-a-month";r=48;t=3600',
    }


@pytest.mark.parametrize("limits", [KeyLimits(pages_a_day=3), KeyLimits(pages_a_month=3, pages_a_day=9)])
def test_more_pages_than_the_whole_quota_are_not_to_be_sent_again(setup: Setup, limits: KeyLimits) -> None:
    admission = admit(setup.gate, setup.add(replace(ACME, limits=limits)), "read", pages=2)
    with pytest.raises(PagesOverQuota, match="needs 4 pages or more, and the API key has 3 a ") as refused:
        admission.expect(4)
    assert (refused.value.status, refused.value.retryable) == (413, False)
    admission.expect(3)
    assert setup.used() == Usage(requests=1, reserved=3)


def test_headers_of_answers_say_what_is_left(setup: Setup) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(pages_a_day=9)))
    left = []
    for _ in range(3):
        admission = admit(setup.gate, secret, pages=1)
        left.append(admission.headers["RateLimit"])
        answer(admission)
    assert left == [f'"pages-a-day";r={pages};t=3600' for pages in (8, 7, 6)]


def test_a_rate_is_answered_429_with_when_the_next_may_come(setup: Setup) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(requests_per_s=0.25)))
    admission = admit(setup.gate, secret, "read")
    assert admission.headers["RateLimit"] == '"requests";r=0;t=4'
    error = refusal(setup, secret)
    assert isinstance(error, QuotaExceeded)
    assert error.retry_after_s == 4


def test_requests_at_once_are_answered_429(setup: Setup) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(concurrency=1)))
    first = admit(setup.gate, secret, "read")
    assert (first.headers, isinstance(refusal(setup, secret), QuotaExceeded)) == ({}, True)
    first.release()
    admit(setup.gate, secret, "read")


def test_a_key_without_limits_has_no_headers_and_its_pages_are_counted(setup: Setup) -> None:
    admission = admit(setup.gate, setup.add(), "read", pages=1)
    admission.expect(6)
    assert admission.headers == {}
    answer(admission, 6)
    assert setup.used() == Usage(today=6, this_month=6)


def test_pages_of_a_document_are_reserved_as_they_become_known(setup: Setup) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(pages_a_day=10)))
    answer(admit(setup.gate, secret, "read", pages=1), 1)
    admission = admit(setup.gate, secret, "read", pages=1)
    admission.expect(8)
    with pytest.raises(QuotaExceeded):
        admission.expect(10)
    admission.expect(9)
    assert setup.used() == Usage(requests=1, reserved=9, today=1, this_month=1)
    answer(admission, 7)
    assert setup.used() == Usage(today=8, this_month=8)


def test_what_is_not_answered_is_not_counted(setup: Setup) -> None:
    admission = admit(setup.gate, setup.add(replace(ACME, limits=KeyLimits(pages_a_day=10))), "read", pages=4)
    admission.release()
    admission.release()
    assert setup.used() == Usage()


def test_a_page_is_counted_once(setup: Setup) -> None:
    admission = admit(setup.gate, setup.add(), "read", pages=1)
    answer(admission, 1)
    admission.release()
    assert setup.used().today == 1


def test_pages_belong_to_the_day_on_which_their_request_came(setup: Setup) -> None:
    admission = admit(setup.gate, setup.add(), "read", pages=1)
    setup.now[0] += 2 * 3600
    answer(admission, 1)
    assert setup.used() == Usage()
    assert setup.store.usage("acme", period_of(NOW_S)) == Usage(today=1, this_month=1)


def test_a_caller_known_by_a_certificate_is_admitted_by_the_name_of_a_key(setup: Setup) -> None:
    setup.add()
    assert setup.gate.check_named("acme", "read") == ACME
    for name in ("other", ""):
        with pytest.raises(KeyRefused):
            setup.gate.check_named(name, "read")


def test_work_that_was_left_here_counts_and_takes_no_place(setup: Setup) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(concurrency=1, pages_a_day=5)))
    admit(setup.gate, secret, "read")
    work = setup.gate.resume(ACME.identity)
    work.expect(2)
    answer(work, 2)
    assert setup.used() == Usage(requests=1, today=2, this_month=2)
    revoke_key(setup.store, "acme", NOW_S)
    setup.gate.refresh()
    setup.add(replace(ACME, created_at=NOW_S + 1))
    for identity in (ACME.identity, "acme"):
        with pytest.raises(KeyRefused):
            setup.gate.resume(identity)


def test_nobody_is_admitted_before_the_keys_are_known_or_when_they_may_have_changed(tmp_path: Path) -> None:
    now = [100.0]
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        secret = add_key(store, ACME)
        gate = AccessGate(store, "w1", monotonic=lambda: now[0])
        with pytest.raises(KeysUnavailable):
            gate.check(secret)
        gate.refresh()
        now[0] += 4.9
        gate.check(secret)
        now[0] += 0.2
        assert not gate.is_ready
        with pytest.raises(KeysUnavailable) as refused:
            gate.check(secret)
        assert (refused.value.status, refused.value.retry_after_s) == (503, 2)
        gate.refresh()
        gate.check(secret)


def test_the_log_says_that_nobody_is_admitted_when_it_is_so(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = setup.add()

    def fail() -> int:
        raise KeysUnavailable(reason="The disk is full.")

    def said() -> list[str]:
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    caplog.set_level("INFO", "ocrsvc.access")
    with monkeypatch.context() as broken:
        broken.setattr(setup.store, "version", fail)
        for _ in range(2):
            setup.gate.refresh_or_log()
        setup.gate.check(secret)
        failing = "WARNING Cannot read the keys again: The disk is full."
        assert said() == [f"{failing} Those in memory are valid for 5 s after the last read."]
        setup.monotonic[0] += 5.0
        for _ in range(2):
            setup.gate.refresh_or_log()
        with pytest.raises(KeysUnavailable):
            setup.gate.check(secret)
        assert said()[1:] == ["ERROR Refusing all requests: The disk is full."]
    for _ in range(2):
        setup.gate.refresh_or_log()
    setup.gate.check(secret)
    assert said()[2:] == ["INFO The store of the API keys answers again."]


def test_what_the_store_cannot_be_told_now_it_is_told_later(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = admit(setup.gate, setup.add(replace(ACME, limits=KeyLimits(pages_a_day=5))), "read", pages=1)

    def fail(*_: object) -> None:
        raise KeysUnavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(setup.store, "settle", fail)
        answer(admission, 1)
        admission.release()
        with pytest.raises(KeysUnavailable, match="The disk is full"):
            setup.gate.refresh()
    assert setup.used() == Usage(requests=1, reserved=1)
    setup.gate.refresh()
    assert setup.used() == Usage(today=1, this_month=1)


def test_all_pages_counted_during_an_outage_of_the_store_are_there_after_it(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = setup.add()

    def fail(*_: object) -> None:
        raise KeysUnavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(setup.store, "settle", fail)
        for _ in range(4):
            answer(admit(setup.gate, secret, "read"), 1)
            setup.gate.refresh_or_log()
    # The key is not used again.
    setup.gate.refresh()
    assert setup.used() == Usage(today=4, this_month=4)


@pytest.mark.parametrize("rate", [1, 5, 6, 7, 22, 30])
def test_headers_say_exactly_how_many_requests_of_a_second_are_left(setup: Setup, rate: int) -> None:
    secret = setup.add(replace(ACME, limits=KeyLimits(requests_per_s=rate)))
    left = []
    for _ in range(rate):
        # Headers are made four times a second.
        setup.monotonic[0] += 0.25
        setup.gate.refresh()
        left.append(admit(setup.gate, secret, "read").headers["RateLimit"].split(";")[1])
    assert left == [f"r={requests}" for requests in reversed(range(rate))]


def test_a_name_can_be_used_again_once_its_key_is_revoked(setup: Setup) -> None:
    old = setup.add()
    with pytest.raises(OperatorError, match="There is a key named acme"):
        setup.add()
    revoke_key(setup.store, "acme", NOW_S)
    new = setup.add()
    assert isinstance(refusal(setup, old), KeyRefused)
    admit(setup.gate, new, "read")


def test_the_store_holds_no_secret(setup: Setup, tmp_path: Path) -> None:
    secret = setup.add()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    # The secret part may have underscores of its own.
    assert secret.split("_", 2)[2].encode() not in files
    assert digest_of(secret).hex().encode() in files


def test_a_key_knows_the_priorities_of_the_queue() -> None:
    assert get_args(KeyPriority) == PRIORITIES
