"""A version that ends the workers that load it is refused for all; a service that is ended says nothing of a model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from models_support import make_fake

from ocrsvc.engines.model.version import built_in_model
from ocrsvc.errors import EngineUnavailable
from ocrsvc.models.proof.verdicts import LOADS_FOLDER, MOST_CRASHES, CrashGuard, Verdicts
from ocrsvc.models.state import StateStore
from ocrsvc.settings.settings import Settings

REFUSED = 9
IN_ORDER = """
import sys, threading
from pathlib import Path
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.proof.verdicts import CrashGuard
from ocrsvc.models.proof.verdicts import Verdicts
from ocrsvc.settings.settings import Settings
from ocrsvc.models.state import StateStore
folder = Path(sys.argv[2])
guard = CrashGuard(folder, Verdicts(Settings(), StateStore(folder)))
begun = threading.Event()
def load():
    with guard.loading(ModelRepository(Path(sys.argv[1])).open("fake", 1)):
        begun.set()
        threading.Event().wait()
threading.Thread(target=load, daemon=True).start()
begun.wait()
assert list(Path(sys.argv[2]).glob("loading/*"))
sys.exit(0)
"""


def guard_of(folder: Path) -> CrashGuard:
    """The guard of a machine whose state is in the folder."""
    return CrashGuard(folder / "state", Verdicts(Settings(), StateStore(folder / "state")))


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


def test_version_that_crashes_its_workers_is_refused(tmp_path: Path) -> None:
    version, store = make_fake(tmp_path / "models", 1), StateStore(tmp_path / "state")
    guard = guard_of(tmp_path)

    def load_and_die() -> None:
        with guard.loading(version):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(MOST_CRASHES):
        assert in_child(load_and_die) == -signal.SIGKILL
    assert in_child(load_and_die) == REFUSED
    verdict = store.read().verdicts[version.digest]
    assert (verdict.accepted, verdict.kind) == (False, "crash")
    # It was forgotten, say: it begins anew.
    assert in_child(load_and_die) == -signal.SIGKILL


def test_crash_of_the_whole_service_does_not_count(tmp_path: Path) -> None:
    version, guard = make_fake(tmp_path / "models", 1), guard_of(tmp_path)

    def die() -> None:
        with guard.loading(version):
            os.kill(os.getpid(), signal.SIGKILL)

    def service() -> None:
        for _ in range(MOST_CRASHES):
            in_child(die)
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(service)
    assert len(list((tmp_path / "state" / LOADS_FOLDER).iterdir())) == MOST_CRASHES
    with guard.loading(version):
        pass
    assert not list((tmp_path / "state" / LOADS_FOLDER).iterdir())


def test_orderly_exit_during_a_load_leaves_no_mark(tmp_path: Path) -> None:
    make_fake(tmp_path / "models", 1)
    subprocess.run([sys.executable, "-c", IN_ORDER, tmp_path / "models", tmp_path / "state"], check=True, timeout=60)
    assert not list((tmp_path / "state" / LOADS_FOLDER).iterdir())


def test_built_in_model_has_no_load_marks(tmp_path: Path) -> None:
    with guard_of(tmp_path).loading(built_in_model()):
        assert not (tmp_path / "state").exists()
