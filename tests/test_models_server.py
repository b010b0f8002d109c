"""Several models in the real service, in both kinds of isolation: each answer is read by the model that it names."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from models_support import accept, make_fake, make_version
from support import Server, run_server

from ocrsvc.system.memory import read_rss_bytes

ANSWER_S = 60.0
MIB = 1 << 20
# Of a model, once in a worker and once in each of its two child processes.
MODEL_MIB = {"thread": 160, "process": 48}
# Two models, and what they take besides in processes of their own, but not three.
BUDGET_MIB = {"thread": 400, "process": 240}
# One model and the worker itself, but not two models.
SOFT_MIB = 380


def make_models(folder: Path, model_bytes: int) -> dict[str, str]:
    """Models that say who they are: `a` by default, `b` and `c`, one that crashes, and one whose file was changed."""
    repository = folder / "models"
    versions = [make_fake(repository, 1, name, fake_model_bytes=model_bytes) for name in "abc"]
    versions.append(make_fake(repository, 1, "crashing", fake_fault="segfault"))
    damaged = 'engine = "fake"\n[settings]\nfake_text = "./text"\n'
    versions.append(make_version(repository, "damaged", 1, damaged, {"text": b"as it was"}))
    (repository / "damaged" / "1" / "text").write_bytes(b"as it is")
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
    """The model that an answer names, and the text that the model itself reads."""
    engine = answer["engine"]
    return f"{engine['model']}/{engine['version']}", answer["pages"][0]["lines"][-1]["text"]


def test_every_answer_names_the_model_that_read_it(server: Server) -> None:
    named = [None, "a", "b", "c/1", "b", "a/1"] * 2
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda name: ask(server, name), named))
    assert [answer.status_code for answer in answers] == [200] * len(named)
    expected = [f"{(name or 'a').partition('/')[0]}/1" for name in named]
    assert [readers_of(answer.json()) for answer in answers] == [(one, one) for one in expected]


def test_the_models_stay_within_their_memory(server: Server) -> None:
    for name in "cab":
        assert ask(server, name).status_code == 200
    assert server.metric("ocrsvc_model_unloads_total") > 0
    assert server.metric("ocrsvc_loaded_models_bytes") <= server.metric("ocrsvc_loaded_models_limit_bytes")


def test_a_damaged_model_is_refused_for_a_while_and_the_others_read(server: Server) -> None:
    answers = [ask(server, "damaged") for _ in range(2)]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "model_unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
        assert "text does not match the manifest" in answer.json()["detail"]
    assert ask(server, "b").status_code == 200


def test_an_image_that_crashes_one_model_is_read_by_another(server: Server, isolation: str) -> None:
    if isolation == "thread":
        pytest.skip("in the worker itself a crash ends the worker")
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
