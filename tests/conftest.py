"""Fixtures of all tests, and the check that no test leaves threads or processes behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from support import page_handle, reserved_port, run_server

if TYPE_CHECKING:
    from flask.testing import FlaskClient
    from playwright.sync_api import Browser
    from support import Server

    from ocrsvc.engines.ppocr.engine import PageHandle
    from ocrsvc.pipeline.read import Reader

_LEAVING_S = 30.0
_DAY_S = 86400.0
_LONGEST_S = 90.0
# These files take more than a minute. They run first; otherwise one test process would still run after the others.
_LONG_FILES = (
    *("recycling", "server", "hostile", "operators", "ppocr", "isolated_server", "jobs_answers", "upgrades"),
    *("isolation", "os_faults", "web_page", "umi_documents", "pdf_child", "tuning", "deploy", "batch_sources_tables"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, and keep the order of the others."""
    places = {f"test_{name}.py": place for place, name in enumerate(_LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_configure() -> None:
    """Hide plug-ins from the tests, and turn off Hypothesis' deadlines."""
    pytest.MonkeyPatch().setattr("ocrsvc.plugins.entry_points", lambda group: ())  # noqa: ARG005
    # How long an example takes depends on the load of the machine.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("without_clock", max_examples=50, deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("without_clock")


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    from web_support import running_reader

    with running_reader() as reader:
        yield reader


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[FlaskClient]:
    """A test client of the application with `KnownEngine`; the module may set CLIENT_SETTINGS."""
    from web_support import running_app

    with running_app(getattr(request.module, "CLIENT_SETTINGS", None)) as app:
        yield app.test_client()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser; tests are skipped if none is installed."""
    from browser_support import launched_browser

    with launched_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A service with one worker, four threads and the fake engine; the module may set SERVER_ENV."""
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_THREADS": "4"}
    with run_server(env | getattr(request.module, "SERVER_ENV", {})) as server:
        yield server


@pytest.fixture(scope="module")
def handle() -> Iterator[PageHandle]:
    with page_handle(threads=2) as handle:
        yield handle


@pytest.fixture(scope="session")
def gpu_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the doubles of Tr (GPU build) and of NVML."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc is not on PATH")
    folder = tmp_path_factory.mktemp("tr-gpu")
    subprocess.run([sys.executable, Path(__file__).parent / "doubles" / "tr_home.py", folder, "--gpu"], check=True)
    return folder


@pytest.fixture
def free_port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.fixture
def one_day() -> None:
    """Wait until midnight (UTC) has passed if it is less than 90 s away: daily page counts reset then."""
    left_s = _DAY_S - time.time() % _DAY_S
    if left_s < _LONGEST_S:
        time.sleep(left_s)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves threads or child processes behind."""
    threads, children = set(threading.enumerate()), _children()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(_LEAVING_S)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads are left behind: {left}"
    assert not _children() - children, f"child processes are left behind: {_children() - children}"


def _children() -> set[str]:
    found: set[str] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        # A thread of a native library may end after glob() listed it.
        with suppress(FileNotFoundError, ProcessLookupError):
            found.update(file.read_text().split())
    return found
