"""What others write into a repository, or have kept in its state, does not take the state from what serves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ocrsvc.errors import OperatorError, SettingsError
from ocrsvc.models.policy import parse_policies
from ocrsvc.models.state import MOST_VERDICTS, StateStore, Verdict


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A state in which one version is accepted, for long."""
    store = StateStore(tmp_path)
    store.record_verdict("serves", Verdict(accepted=True, at=1.0))
    return store


@pytest.mark.parametrize("text", ["[" * 20_000, f"a = {'9' * 5000}", f"{'.'.join('a' * 30_000)} = 1"])
def test_policies_made_to_stop_the_service_are_wrong_ones(text: str) -> None:
    with pytest.raises(SettingsError, match="is no TOML"):
        parse_policies(text)


def test_refusals_however_many_leave_what_serves_its_verdict(store: StateStore) -> None:
    refused = {f"digest {number}": Verdict(accepted=False, at=time.time() + number) for number in range(MOST_VERDICTS)}
    store.change(lambda state: state.model_copy(update={"verdicts": {**state.verdicts, **refused}}))
    assert len(store.read().verdicts) == MOST_VERDICTS
    assert store.read().verdicts["serves"].accepted


def test_a_state_that_is_too_large_is_not_written(store: StateStore) -> None:
    labels = {"mine": {f"{'l' * 60}{number}": 1 for number in range(100_000)}}
    with pytest.raises(OperatorError, match="more than"):
        store.change(lambda state: state.model_copy(update={"labels": labels}))
    assert StateStore(store.folder).read().verdicts["serves"].accepted
