"""Live traffic judges a version that has just taken it: by failures and confidence, against the version before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ocrsvc.errors import SettingsError
from ocrsvc.model_repository.description import Description
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.live_checks import Band, LiveChecks
from ocrsvc.settings.load import read_settings

BAND = Band(pages=200, errors=0.02, confidence=0.03)
OLD, NEW = (ModelVersion("m", number, Description(engine="fake"), Path(), str(number)) for number in (1, 2))


def checks_after(pages: int = 200, confidence: float = 0.9, failed_every: int = 0) -> LiveChecks:
    """The old version has read so many pages, and the new one takes its traffic."""
    checks = LiveChecks(BAND)
    read(checks, OLD, pages, confidence, failed_every)
    checks.begin_trial(NEW, OLD)
    return checks


def read(checks: LiveChecks, version: ModelVersion, pages: int, confidence: float, failed_every: int = 0) -> None:
    """So many pages, with confidences spread evenly by 0.1 around that one, of which each n-th fails."""
    for number in range(pages):
        is_failed = bool(failed_every) and number % failed_every == 0
        spread = (number % 11 - 5) / 100
        checks.add_page(version, None if is_failed else confidence + spread, is_failed=is_failed)


@pytest.mark.parametrize(
    ("confidence", "failed_every", "reason"),
    [
        (0.9, 0, ""),
        # 0.87 is within the band and what chance explains.
        (0.87, 0, ""),
        (0.8, 0, "mean confidence"),
        (0.9, 2, "fails on"),
        # One page in fifty is within the band.
        (0.9, 50, ""),
    ],
)
def test_a_version_out_of_the_band_is_named(confidence: float, failed_every: int, reason: str) -> None:
    checks = checks_after()
    read(checks, NEW, 200, confidence, failed_every)
    found = checks.take_failures()
    assert [version for version, _ in found] == ([NEW] if reason else [])
    assert all(reason in why and "m/1" in why for _, why in found)
    assert not checks.take_failures()


def test_few_pages_say_nothing() -> None:
    checks = checks_after(pages=29)
    read(checks, NEW, 200, 0.1)
    assert not checks.take_failures()
    checks = checks_after()
    read(checks, NEW, 29, 0.1)
    assert not checks.take_failures()


def test_a_version_that_failed_as_often_before_is_not_blamed() -> None:
    checks = checks_after(failed_every=3)
    read(checks, NEW, 200, 0.9, failed_every=3)
    assert not checks.take_failures()


def test_a_trial_ends_and_its_version_is_what_the_next_is_held_against() -> None:
    checks = checks_after()
    read(checks, NEW, 200, 0.9)
    read(checks, NEW, 300, 0.2)
    assert not checks.take_failures()
    newest = ModelVersion("m", 3, NEW.description, Path(), "3")
    checks.begin_trial(newest, NEW)
    read(checks, newest, 200, 0.2)
    assert not checks.take_failures()


def test_without_pages_of_the_version_before_nothing_is_judged() -> None:
    checks = LiveChecks(BAND)
    checks.begin_trial(NEW, OLD)
    read(checks, NEW, 200, 0.1, failed_every=1)
    assert not checks.take_failures()


def test_no_trial_is_made_of_no_pages() -> None:
    checks = LiveChecks(Band(0, 0.0, 0.0))
    read(checks, OLD, 50, 0.9)
    checks.begin_trial(NEW, OLD)
    read(checks, NEW, 50, 0.1)
    assert not checks.take_failures()


def test_chance_alone_ends_few_trials() -> None:
    chance, ended = random.Random(1), 0
    for _ in range(100):
        checks = LiveChecks(BAND)
        for version in (OLD, NEW):
            for _ in range(200):
                checks.add_page(version, chance.gauss(0.8, 0.2), is_failed=chance.random() < 0.05)
            if version is OLD:
                checks.begin_trial(NEW, OLD)
        ended += bool(checks.take_failures())
    assert ended <= 1


def test_a_trial_of_too_few_pages_to_say_anything_stops_the_start() -> None:
    assert read_settings({"OCRSVC_MODELS_LIVE_PAGES": "30"}).models_live_pages == 30
    with pytest.raises(SettingsError, match=r"OCRSVC_MODELS_LIVE_PAGES.*29.*0, or 30 and more"):
        read_settings({"OCRSVC_MODELS_LIVE_PAGES": "29"})
