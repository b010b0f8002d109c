"""A version that ends the workers that load it is refused for all; a service that is ended says nothing of a model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from models_support import make_fake

from ocrsvc.errors import EngineUnavailable
from ocrsvc.model_repository.builtin import built_in_model
from ocrsvc.model_serving.load_deaths import FOLDER, MOST_DEATHS, LoadDeaths
from ocrsvc.model_serving.state import StateStore

REFUSED = 9
IN_ORDER = """
import sys, threading
from pathlib import Path
from ocrsvc.model_repository.repository import ModelRepository
from ocrsvc.model_serving.load_deaths import LoadDeaths
from ocrsvc.model_serving.state import StateStore
deaths, begun = LoadDeaths(StateStore(Path(sys.argv[2])), ""), threading.Event()
def load():
    with deaths.watching(ModelRepository(Path(sys.argv[1])).open("fake", 1)):
        begun.set()
        threading.Event().wait()
threading.Thread(target=load, daemon=True).start()
begun.wait()
assert list(Path(sys.argv[2]).glob("loading/*"))
sys.exit(0)
"""


def in_child(call: Callable[[], None]) -> int:
    """The exit code of a process that makes the call, and is not ended by it; minus the signal of one that is."""
    child = os.fork()
    if not child:
        try:
            call()
        except EngineUnavailable:
            os._exit(REFUSED)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_version_that_ends_its_workers_is_refused(tmp_path: Path) -> None:
    version, store = make_fake(tmp_path / "models", 1), StateStore(tmp_path / "state")
    deaths = LoadDeaths(store, "here")

    def load_and_die() -> None:
        with deaths.watching(version):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(MOST_DEATHS):
        assert in_child(load_and_die) == -signal.SIGKILL
    assert in_child(load_and_die) == REFUSED
    verdict = store.read().verdicts[version.digest]
    assert (verdict.accepted, verdict.kind, verdict.made_on) == (False, "crash", "here")
    # It was forgotten, say: it begins anew.
    assert in_child(load_and_die) == -signal.SIGKILL


def test_the_death_of_a_whole_service_does_not_count(tmp_path: Path) -> None:
    version, deaths = make_fake(tmp_path / "models", 1), LoadDeaths(StateStore(tmp_path / "state"), "")

    def die() -> None:
        with deaths.watching(version):
            os.kill(os.getpid(), signal.SIGKILL)

    def service() -> None:
        for _ in range(MOST_DEATHS):
            in_child(die)
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(service)
    assert len(list((tmp_path / "state" / FOLDER).iterdir())) == MOST_DEATHS
    with deaths.watching(version):
        pass
    assert not list((tmp_path / "state" / FOLDER).iterdir())


def test_a_process_that_ends_in_order_while_it_loads_leaves_nothing(tmp_path: Path) -> None:
    make_fake(tmp_path / "models", 1)
    subprocess.run([sys.executable, "-c", IN_ORDER, tmp_path / "models", tmp_path / "state"], check=True, timeout=60)
    assert not list((tmp_path / "state" / FOLDER).iterdir())


def test_nothing_is_written_for_the_built_in_model(tmp_path: Path) -> None:
    with LoadDeaths(StateStore(tmp_path / "state"), "").watching(built_in_model()):
        assert not (tmp_path / "state").exists()
