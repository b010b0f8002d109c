"""The access gate: admission by API key, and the counting of pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keys_support import Keys, answer, keys_in

from ocrsvc.access.api_keys import digest_of, make_secret
from ocrsvc.access.key_store import Usage
from ocrsvc.access.manage_keys import rotate_key
from ocrsvc.errors import KeyRefused, KeysUnavailable, OcrsvcError, QuotaExceeded

# 2027-03-31 23:00:00 UTC, an hour before the day and the month end.
NOW_S = 1_806_534_000.0


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Keys]:
    with keys_in(tmp_path) as found:
        found.now_s = NOW_S
        yield found


def refusal(keys: Keys, secret: str | None) -> OcrsvcError:
    with pytest.raises(OcrsvcError) as refused:
        keys.gate.enter(keys.gate.check(secret, "read", "api"), 1)
    return refused.value


def rotate(keys: Keys, grace_s: float) -> str:
    secret = rotate_key(keys.store, "anna", grace_s, keys.now_s)
    keys.gate.refresh()
    return secret


def fail(*_: object) -> int:
    raise KeysUnavailable(reason="The disk is full.")


def test_wrong_revoked_and_expired_keys_get_the_same_error(keys: Keys) -> None:
    good, revoked, rotated = keys.add("good"), keys.add("gone"), keys.add()
    expired = keys.add("late", expires_at=NOW_S + 60)
    rotate(keys, 60.0)
    keys.revoke("gone")
    keys.now_s += 60
    wrong_end = good[:-1] + ("A" if good[-1] != "A" else "B")
    unknown = make_secret()[0]
    texts = (revoked, expired, rotated, wrong_end, unknown, "x", good + "x", "ocr_" + "é" * 60, "\udcff", "a" * 10_000)
    answers = [refusal(keys, text) for text in texts]
    assert {(type(error), str(error), error.status, error.code) for error in answers} == {
        (KeyRefused, str(answers[0]), 401, "key_refused")
    }
    keys.enter("good")


def test_a_rotated_secret_is_valid_until_its_grace_ends(keys: Keys) -> None:
    old = keys.add()
    new = rotate(keys, 60.0)
    for secret in (old, new):
        answer(keys.gate.enter(keys.gate.check(secret)), 1)
    # Usage counts for the key, whichever of its secrets was sent.
    assert keys.usage().today == 2
    keys.now_s += 61
    assert isinstance(refusal(keys, old), KeyRefused)
    keys.gate.check(new)
    newest = rotate(keys, 0.0)
    assert isinstance(refusal(keys, new), KeyRefused)
    keys.gate.check(newest)


@pytest.mark.parametrize("rate", [1, 7, 30])
def test_headers_count_the_requests_left_of_a_burst(keys: Keys, rate: int) -> None:
    keys.add(requests_per_s=rate)
    left = []
    for _ in range(rate):
        # The RateLimit header is updated four times a second.
        keys.monotonic_s += 0.25
        keys.gate.refresh()
        left.append(keys.enter().headers["RateLimit"].split(";")[1])
    assert left == [f"r={requests}" for requests in reversed(range(rate))]


def test_reached_rate_returns_429_with_retry_after(keys: Keys) -> None:
    secret = keys.add(requests_per_s=0.25)
    assert keys.enter().headers["RateLimit"] == '"requests";r=0;t=4'
    error = refusal(keys, secret)
    assert isinstance(error, QuotaExceeded)
    assert error.retry_after_s == 4


def test_pages_count_for_the_day_of_their_request(keys: Keys) -> None:
    keys.add()
    admission = keys.enter()
    keys.now_s += 2 * 3600
    answer(admission)
    assert (keys.usage(), keys.usage(now_s=NOW_S)) == (Usage(), Usage(today=1, this_month=1))


def test_the_log_says_when_all_requests_are_refused(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = keys.add()

    def logged_by_two_refreshes() -> list[str]:
        caplog.clear()
        for _ in range(2):
            keys.gate.refresh_or_log()
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    caplog.set_level("INFO", "ocrsvc.access")
    with monkeypatch.context() as broken:
        broken.setattr(keys.store, "version", fail)
        failing = "WARNING Cannot refresh the keys: The disk is full."
        assert logged_by_two_refreshes() == [f"{failing} Those in memory stay valid for 5 s after the last refresh."]
        keys.gate.check(secret)
        keys.monotonic_s += 5.0
        assert logged_by_two_refreshes() == ["ERROR Refusing all requests: The disk is full."]
        with pytest.raises(KeysUnavailable):
            keys.gate.check(secret)
    assert logged_by_two_refreshes() == ["INFO The API key store responds again."]
    keys.gate.check(secret)


@pytest.mark.parametrize("limits", [{}, {"pages_a_day": 5}], ids=str)
def test_pages_are_settled_after_the_store_recovers(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    keys.add(**limits)
    with monkeypatch.context() as broken:
        broken.setattr(keys.store, "settle", fail)
        for _ in range(3):
            admission = keys.enter()
            answer(admission)
            admission.release()
            with pytest.raises(KeysUnavailable):
                keys.gate.refresh()
    # The pages are settled without another request of the key.
    assert keys.usage() == Usage(today=3, this_month=3)


def test_the_store_holds_no_secret(keys: Keys, tmp_path: Path) -> None:
    secret = keys.add()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    # The secret part may itself contain underscores.
    assert secret.split("_", 2)[2].encode() not in files
    assert digest_of(secret).hex().encode() in files
