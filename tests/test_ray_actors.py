"""Actors of a Ray cluster: which reads what, and what becomes of groups, files and actors that end; without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_support import draw_images, use_fake_engine
from ray_support import TwoNodes, two_nodes
from support import clean_environment, wait_until

from ocrsvc import __version__
from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile, failure_of
from ocrsvc.batch.readers.ray_actors import Actor, ActorArguments, ActorPool, ActorStarted, room_in
from ocrsvc.batch.readers.ray_reader import RayReader, check_listens, settings_to_send
from ocrsvc.batch.request import ClusterRequest
from ocrsvc.cli.batch import actor_options_of
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption, ClusterUnavailable, OcrsvcError, RunChanged, SourceGone
from ocrsvc.results import ReadOptions

NODE = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}
GROUP = PageGroup(SourceFile("1", "1", "1", 10, 3, range(1, 4)), (1, 2, 3), (0, 1, 2))
SOON_S = 20.0


class Handle:
    """An actor as Ray gives it; `said` is its answer, once the test gives it."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.node = self.start = SimpleNamespace(remote=lambda: self)


class Cluster:
    """A pool over a cluster that says what the test says."""

    def __init__(self, request: ClusterRequest, free: Mapping[str, float] | None = None) -> None:
        self.now, self.free = 0.0, dict(free or {"CPU": 4.0})
        self.handles, self.killed = list[Handle](), list[Handle]()
        ray: Any = SimpleNamespace(
            kill=self.killed.append,
            nodes=lambda: [NODE],
            available_resources=lambda: self.free,
            cluster_resources=lambda: NODE["Resources"],
            wait=lambda handles, **_: ([one for one in handles if one.said], []),
            get=self._get,
        )
        self.pool = ActorPool(ray, request, self._make, lambda: self.now)

    def _make(self) -> Handle:
        self.handles.append(Handle())
        return self.handles[-1]

    @staticmethod
    def _get(handle: Handle) -> object:
        if isinstance(handle.said[0], BaseException):
            raise handle.said[0]
        return handle.said[0]

    def adapt(self, seconds: float = 0.0) -> int:
        """Let time pass, and give how many actors were asked for then."""
        before = len(self.handles)
        self.now += seconds
        self.pool.adapt()
        return len(self.handles) - before

    def answer(self, *answers: object) -> None:
        """The first actors are placed, and answer their start one after the other."""
        for handle, said in zip(self.handles, answers, strict=False):
            handle.said.append(said)
            self.pool.adapt()


def pool_of(*at_once: int) -> ActorPool:
    """A pool with actors a, b and so on that read so many groups at once."""
    pool = Cluster(ClusterRequest()).pool
    for host, most in zip("abc", at_once, strict=False):
        said = ActorStarted({}, "", "", most, f"node of {host}", host)
        pool.actors.append(Actor(Handle(), 0.0, None, None, said=said))
    return pool


# Which actor reads what.


def test_groups_go_to_the_actors_with_the_most_places_up_to_what_they_read_at_once() -> None:
    pool = pool_of(2, 2)
    with ExitStack() as taken:
        assert [taken.enter_context(pool.taken()).said.host for _ in range(4)] == ["a", "b", "a", "b"]
        assert (pool.at_once, pool._free()) == (4, None)


def test_a_page_that_is_read_alone_waits_until_an_actor_has_nothing_else() -> None:
    pool, is_alone = pool_of(2), threading.Event()

    def read_alone() -> None:
        with pool.taken(alone=True) as actor:
            assert actor.calls == 1
            is_alone.set()

    with pool.taken():
        thread = threading.Thread(target=read_alone)
        thread.start()
        assert not is_alone.wait(0.1)
        # Nothing else is given to that actor meanwhile.
        assert pool._free() is None
    thread.join(SOON_S)
    assert is_alone.is_set()
    assert pool._free() is pool.actors[0]


def reader_with(*answers: object, has_file: bool = True) -> tuple[RayReader, list[object]]:
    """A reader whose actor answers so ("read", None where it lacks the file, () where it ends), and what it is sent."""
    sent: list[object] = []

    def load(file: SourceFile) -> bytes:
        if not has_file:
            raise SourceGone(f"{file.name} cannot be read.")
        return b"data"

    def ask(_actor: Actor, group: PageGroup, data: object) -> Any:
        sent.append(data)
        answer = answers[len(sent) - 1]
        read = tuple(PageResult(index, b"{}", "", False, 0.1, 1.0, 0, "a") for index in group.indexes)
        return read if answer == "read" else answer

    reader = RayReader("ray", ClusterRequest(), ActorArguments({}, ReadOptions(), load, 60.0, ""))
    reader._pool, reader._ray = pool_of(1), SimpleNamespace(put=lambda data: data)
    reader._ask = ask  # type: ignore[method-assign, assignment]
    return reader, sent


def test_a_file_that_a_node_lacks_is_sent_and_fails_if_no_machine_has_it() -> None:
    reader, sent = reader_with(None, "read", "read")
    for _ in range(2):
        assert [result.error for result in reader.read(GROUP)] == ["", "", ""]
    assert sent == [None, b"data", b"data"]
    reader, _ = reader_with(None, has_file=False)
    error = SourceGone("1 cannot be read.")
    assert list(reader.read(GROUP)) == [failure_of(GROUP, number, error) for number in GROUP.pages]


def test_pages_of_a_group_that_ends_actors_are_read_alone_and_fail_alone() -> None:
    reader, _ = reader_with((), (), "read", (), (), (), "read")
    assert [(result.index, result.error, result.is_retryable) for result in reader.read(GROUP)] == [
        (0, "", False),
        (1, "image_crashes_engine", False),
        (2, "", False),
    ]


def started(model: str = "m", version: str = __version__) -> ActorStarted:
    identity = {"engine": "fake", "model": model, "version": "1"}
    return ActorStarted(identity, version, "cpu none none", 3, "node", "host/1")


def test_as_many_actors_are_asked_for_as_there_is_room_for() -> None:
    cluster = Cluster(ClusterRequest(cpus=2.0))
    assert cluster.adapt() == 2
    cluster.answer(started(), started())
    assert cluster.pool.at_once == 6
    cluster.free = {"CPU": 0.5}
    assert cluster.adapt(2) == 0
    # Parts of a GPU are counted exactly.
    assert room_in(ClusterRequest(cpus=0.1, gpus=0.1), {"CPU": 1.0, "GPU": 1.0}) == 10
    assert room_in(ClusterRequest(options={"resources": {"scanner": 1}}), {"CPU": 8.0}) == 0


def test_an_actor_that_finds_no_room_is_withdrawn_unless_it_was_asked_for_by_number() -> None:
    for request, withdrawn in ((ClusterRequest(), 3), (ClusterRequest(actors=4), 0)):
        cluster = Cluster(request)
        assert cluster.adapt() == 4
        cluster.answer(started())
        cluster.adapt(61)
        assert len(cluster.killed) == withdrawn


def test_actors_that_end_are_replaced_and_those_with_another_engine_are_not_used() -> None:
    cluster = Cluster(ClusterRequest(actors=3))
    cluster.adapt()
    cluster.answer(started(), started("other"), started(version="0"))
    assert (len(cluster.pool.actors), cluster.killed) == (1, cluster.handles[1:])
    assert cluster.adapt(2) == 0
    cluster.pool.remove(cluster.pool.actors[0], "Its node has died.")
    assert (len(cluster.killed), cluster.pool.actors) == (3, [])
    assert cluster.adapt(31) == 3


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (started(version="0"), RunChanged),
        (SourceGone("The model is damaged.", "Install it again."), ClusterUnavailable),
        (ImportError("No module named 'ocrsvc'"), ClusterUnavailable),
    ],
)
def test_a_first_actor_of_another_version_or_without_an_engine_stops_the_run(
    said: object, error: type[OcrsvcError]
) -> None:
    cluster = Cluster(ClusterRequest())
    cluster.adapt()
    with pytest.raises(error):
        cluster.answer(said)


def test_a_run_without_an_actor_says_what_is_lacking_and_is_given_up_in_the_end() -> None:
    cluster = Cluster(ClusterRequest(gpus=0.5, wait_s=30.0), {"CPU": 4.0, "GPU": 0.25})
    assert cluster.adapt() == 1
    cluster.adapt(29)
    with pytest.raises(ClusterUnavailable, match=r"0\.5 GPU; the cluster has 4 of 4 CPU free, 0\.25 of 1 GPU free"):
        cluster.adapt(2)


# What the command sends, and takes.


@pytest.mark.parametrize("noted", ["", "127.0.0.1:{port}"], ids=["RAY_ADDRESS", "noted by a cluster that was killed"])
def test_a_cluster_that_does_not_answer_is_said_at_once(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: str
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(noted.format(port=free_port))
    monkeypatch.setenv("RAY_ADDRESS", "" if noted else f"127.0.0.1:{free_port}")
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{free_port} does not answer"):
        check_listens("ray")


def test_settings_are_sent_without_secrets() -> None:
    environment = {"OCRSVC_ENGINE": "fake", "OCRSVC_MODELS_KEY": "c2VjcmV0", "OCRSVC_CACHE_URL": "redis://:secret@host"}
    sent = settings_to_send(environment, ClusterRequest(cpus=3.0))
    assert "secret" not in str(sent)
    assert (sent["engine"].value, sent["engine_threads"].value) == ("fake", "3")
    assert "models_key" not in sent


@pytest.mark.parametrize("text", ["{", "[]", '{"num_cpus": 2}', '{"max_restarts": 1}'])
def test_options_of_actors_are_checked(text: str) -> None:
    with pytest.raises(BadOption):
        actor_options_of(text)


_SOON_S = 60.0
_PAGES = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    # A socket's path may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="ray") as folder, two_nodes(Path(folder)) as nodes:
        yield nodes


def batch(
    cluster: TwoNodes, sources: list[str], out: Path, *more: str, fds: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """The command, begun."""
    environment = clean_environment(
        {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAY_ADDRESS": cluster.address,
            "OCRSVC_ENGINE": "fake",
            "OCRSVC_ISOLATION": "thread",
            "OCRSVC_FAKE_LATENCY_S": "0.05",
        }
    )
    command = [sys.executable, "-m", "ocrsvc", "batch", *sources, "--out", str(out), "--on", "ray", *more]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, pass_fds=fds)


def written(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.glob("*.jsonl")}


def test_actors_that_no_node_has_room_for_are_named_with_what_there_is(cluster: TwoNodes, tmp_path: Path) -> None:
    process = batch(cluster, [str(tmp_path)], tmp_path / "out", "--gpus-per-actor", "0.5", "--actor-wait", "1")
    said = process.communicate(timeout=_SOON_S)[1]
    assert process.returncode == 69, said
    assert "Each needs 1 CPU, 0.5 GPU; the cluster has" in said
    assert "No node is large enough." in said


def test_a_node_that_dies_costs_nothing_and_the_output_is_as_of_one_process(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake_engine(monkeypatch)
    draw_images(pages := tmp_path / "pages", _PAGES)
    with (pages / "000.png").open("rb") as file:
        # Every process has files of its own by this name: no actor reads this one but from what it is sent.
        sources = [str(pages), f"/proc/self/fd/{file.fileno()}"]
        process = batch(cluster, sources, tmp_path / "ray", "--part-pages", "20", fds=(file.fileno(),))
        wait_until(lambda: list((tmp_path / "ray").glob("*.jsonl")), "a part that is written", _SOON_S)
        cluster.kill_second()
        said = process.communicate(timeout=_SOON_S)[1]
        assert process.returncode == 0, said
        assert run(["batch", *sources, "--out", str(tmp_path / "local"), "--part-pages", "20"]) == 0
    assert written(tmp_path / "ray") == written(tmp_path / "local")
    assert f"{_PAGES + 1} pages read, 0 failed" in said
    assert "has ended; its" in said
