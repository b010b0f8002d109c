"""Several models in a real service: each answer is read by the model that it names, even while versions change."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from models_support import accept, make_fake
from support import Server, repeating, run_server, wait_until

from ocrsvc.system.memory import read_rss_bytes

ANSWER_S = 60.0
MIB = 1 << 20
# Size of a model: loaded once in a worker, or once in each of its two child processes.
MODEL_MIB = {"thread": 160, "process": 48}
# Enough for two models and the overhead of child processes, but not for three models.
BUDGET_MIB = {"thread": 400, "process": 240}
# Enough for the worker with one model, but not with two.
SOFT_MIB = 380


def make_models(folder: Path, model_bytes: int) -> dict[str, str]:
    """Create models whose text names them (`a`, the default, `b`, `c`) and one that crashes; returns the settings."""
    repository = folder / "models"
    versions = [make_fake(repository, 1, name, fake_model_bytes=model_bytes) for name in "abc"]
    versions.append(make_fake(repository, 1, "crashing", fake_fault="segfault"))
    accept(folder, *versions)
    return {
        "OCRSVC_MODELS": str(repository),
        "OCRSVC_MODELS_STATE": str(folder / "state"),
        "OCRSVC_MODEL": "a",
        "OCRSVC_WORKERS": "1",
        "OCRSVC_ENGINE_THREADS": "2",
    }


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def server(isolation: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = make_models(tmp_path_factory.mktemp("models"), MODEL_MIB[isolation] * MIB)
    env |= {"OCRSVC_ISOLATION": isolation, "OCRSVC_MODELS_MEMORY": f"{BUDGET_MIB[isolation]}MiB"}
    env |= {"OCRSVC_RSS_SOFT_BYTES": f"{SOFT_MIB}MiB"}
    with run_server(env) as started:
        yield started


def ask(server: Server, model: str | None = None, data: bytes | None = None) -> requests.Response:
    params = {} if model is None else {"model": model}
    return requests.post(f"{server.url}/v1/ocr", data=data or png(), params=params, timeout=ANSWER_S)


def readers_of(answer: Any) -> tuple[str, str]:
    """The model that an answer names, and the text on its page, in which the model names itself."""
    engine = answer["engine"]
    return f"{engine['model']}/{engine['version']}", answer["pages"][0]["lines"][-1]["text"]


def test_every_answer_names_the_model_that_read_it(server: Server) -> None:
    named = [None, "a", "b", "c/1", "b", "a/1"] * 2
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda name: ask(server, name), named))
    assert [answer.status_code for answer in answers] == [200] * len(named)
    expected = [f"{(name or 'a').partition('/')[0]}/1" for name in named]
    assert [readers_of(answer.json()) for answer in answers] == [(one, one) for one in expected]


def test_an_image_that_crashes_one_model_is_read_by_another(server: Server, isolation: str) -> None:
    if isolation == "thread":
        pytest.skip("without child processes, a crash ends the worker")
    assert (answer := ask(server, "crashing")).status_code == 422, answer.text
    assert readers_of(ask(server, "b").json()) == ("b/1", "b/1")


def test_no_worker_is_replaced_for_the_models_that_it_loads(server: Server, isolation: str) -> None:
    for name in "bc":
        assert ask(server, name).status_code == 200
    [worker] = server.workers()
    if isolation == "thread":
        assert read_rss_bytes(Path(f"/proc/{worker}/statm")) > SOFT_MIB * MIB
    else:
        assert read_rss_bytes(Path(f"/proc/{worker}/statm")) < SOFT_MIB * MIB
    assert server.metric("ocrsvc_recycles_total") == 0
    assert "WANTS a successor" not in server.log


WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"
PAUSE_S = 0.02


def settings(folder: Path, **more: str) -> dict[str, str]:
    """The settings of a service with a repository in the folder."""
    return {
        "OCRSVC_MODELS": str(folder / "models"),
        "OCRSVC_MODELS_STATE": str(folder / "state"),
        "OCRSVC_MODEL": "fake",
        "OCRSVC_MODELS_POLL_S": "0.1",
        "OCRSVC_WORKERS": "2",
        **more,
    }


def add(folder: Path, number: int, text: str = "") -> None:
    """Add a version whose text contains its number."""
    make_fake(folder / "models", number, fake_text=text or f"{WORDS} v{number}")


@contextmanager
def reading_clients(server: Server, clients: int) -> Iterator[Counter[tuple[str, str]]]:
    """Run clients that read pages repeatedly; yields counts of their answers and failures."""
    seen: Counter[tuple[str, str]] = Counter()

    def read() -> None:
        try:
            answer = readers_of(ask(server).json())
        except Exception as error:  # noqa: BLE001  any exception is a failed request
            answer = ("failed", repr(error))
        seen[answer] += 1
        threading.Event().wait(PAUSE_S)

    with repeating(read, clients):
        yield seen


def check(seen: Counter[tuple[str, str]], versions: set[str]) -> None:
    """Check that each answer names one of these versions and has its text."""
    assert set(seen) <= {(f"fake/{version}", f"{WORDS} v{version}") for version in versions}


def test_versions_are_swapped_under_requests_and_bad_ones_never_answer(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with run_server(settings(tmp_path)) as server:
        server.wait_for("READY in", count=2)
        with reading_clients(server, 4) as seen:
            add(tmp_path, 2)
            server.wait_for("SERVING fake/2 in place of fake/1", count=2)
            add(tmp_path, 3, "something else")
            server.wait_for(r"REFUSED fake/3 \(text\): It reads 0\.1. of the words of fake/2")
            add(tmp_path, 4)
            server.wait_for("SERVING fake/4 in place of fake/2", count=2)
            server.wait_for("UNLOADED the model fake/2: retired", count=2)
        assert readers_of(ask(server).json())[0] == "fake/4"
        check(seen, {"1", "2", "4"})
        wait_until(lambda: server.metric('ocrsvc_model_refusals_total{reason="text"}') == 1)
        wait_until(lambda: server.metric("ocrsvc_model_swaps_total") == 4)
        wait_until(lambda: server.metric("ocrsvc_model_refused_versions") == 1)


def test_versions_are_swapped_in_child_processes_too(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with run_server(settings(tmp_path, OCRSVC_ISOLATION="process", OCRSVC_WORKERS="1")) as server:
        with reading_clients(server, 2) as seen:
            add(tmp_path, 2)
            server.wait_for("SERVING fake/2 in place of fake/1")
            server.wait_for("UNLOADED the model fake/1: retired")
        assert readers_of(ask(server).json())[0] == "fake/2"
        check(seen, {"1", "2"})


def test_swap_without_room_for_both_closes_the_old_version_first_and_fails_no_request(tmp_path: Path) -> None:
    large: dict[str, Any] = {"fake_model_bytes": 80 << 20, "fake_latency_s": 0.05}
    make_fake(tmp_path / "models", 1, fake_text=f"{WORDS} v1", **large)
    with run_server(settings(tmp_path, OCRSVC_MODELS_MEMORY="130MiB", OCRSVC_WORKERS="1")) as server:
        with reading_clients(server, 4) as seen:
            make_fake(tmp_path / "models", 2, fake_text=f"{WORDS} v2", **large)
            server.wait_for("SERVING fake/2 in place of fake/1")
            wait_until(lambda: any(version == "fake/2" for version, _ in seen))
        assert server.log.index("UNLOADED the model fake/1") < server.log.index("LOADED the model fake/2")
        check(seen, {"1", "2"})
