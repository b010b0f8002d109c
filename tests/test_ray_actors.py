"""Actors of a Ray cluster: which reads what, and what becomes of groups, files and actors that end; without Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ocrsvc import __version__
from ocrsvc.batch.page_record import failure_of
from ocrsvc.batch.readers.ray_cluster.actor_messages import ActorRefused, ActorStarted, FileMissing
from ocrsvc.batch.readers.ray_cluster.actor_pool import ActorPool, StartingActor
from ocrsvc.batch.readers.ray_cluster.assignment import Actor, ActorsEnded, Assignment, Call
from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.batch.readers.ray_cluster.ray_reader import RayReader
from ocrsvc.batch.readers.ray_cluster.sent_files import SentFiles
from ocrsvc.batch.readers.ray_cluster.sent_settings import settings_to_send
from ocrsvc.batch.readers.ray_cluster.session import check_listens, own_address
from ocrsvc.batch.tasks import PageGroup, PageResult, SourceFile
from ocrsvc.cli.batch_cluster import _options_of
from ocrsvc.errors import BadOption, ClusterUnavailable, RunChanged, SourceGone
from ocrsvc.records import ReadOptions

NODE = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}


def file_of(name: str, size: int = 10) -> SourceFile:
    return SourceFile(name, name, "1", size, 3, range(1, 4))


def call_of(name: str, *, alone: bool = False) -> Call:
    return Call(PageGroup(file_of(name), (1, 2, 3), (0, 1, 2)), alone=alone)


def actor_of(host: str, at_once: int = 2) -> Actor:
    return Actor(None, host, f"node of {host}", at_once)


def begun(assignment: Assignment) -> list[tuple[str, str]]:
    """Who is given what now."""
    found = []
    while (pair := assignment.next()) is not None:
        found.append((pair[0].host, pair[1].group.file.name))
    return found


# Which actor reads what.


def test_calls_go_to_the_actors_with_the_most_places_up_to_what_they_read_at_once() -> None:
    assignment = Assignment()
    for host in "ab":
        assignment.add_actor(actor_of(host))
    for name in "12345":
        assignment.add_call(call_of(name))
    assert begun(assignment) == [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")]
    assert assignment.at_once == 4


def test_what_an_ended_actor_read_is_read_first_by_another() -> None:
    assignment = Assignment()
    ends = actor_of("a", 1)
    assignment.add_actor(ends)
    for name in "12":
        assignment.add_call(call_of(name))
    assert begun(assignment) == [("a", "1")]
    assignment.remove_actor(ends)
    assert assignment.at_once == 1
    assignment.add_actor(actor_of("b", 1))
    assert begun(assignment) == [("b", "1")]


def test_a_group_whose_actors_end_twice_is_answered_so() -> None:
    assignment, call = Assignment(), call_of("1")
    assignment.add_call(call)
    for host in "ab":
        actor = actor_of(host)
        assignment.add_actor(actor)
        assert begun(assignment) == [(host, "1")]
        assignment.remove_actor(actor)
    assert call.answer.get_nowait() == ActorsEnded(2)


def test_a_call_that_is_read_alone_waits_until_an_actor_has_nothing_else() -> None:
    assignment, busy = Assignment(), actor_of("a")
    assignment.add_actor(busy)
    assignment.add_call(call_of("1"))
    assert begun(assignment) == [("a", "1")]
    for name in "23":
        assignment.add_call(call_of(name, alone=True))
    assignment.add_call(call_of("4"))
    assert begun(assignment) == []
    [first] = busy.calls
    assert assignment.end_call(busy, first)
    assert begun(assignment) == [("a", "2")]
    [second] = busy.calls
    assignment.end_call(busy, second)
    assert begun(assignment) == [("a", "3")]
    [third] = busy.calls
    assignment.end_call(busy, third)
    assert begun(assignment) == [("a", "4")]


# What a reader makes of the answers.


class ScriptedDispatcher:
    """Answers calls as a table says, by whether they were sent data, and whether they are alone."""

    at_once = 1

    def __init__(self, answers: Mapping[tuple[bool, bool], Any]) -> None:
        self._answers = answers
        self.lacking: list[str] = []

    def read(self, call: Call) -> Any:
        answer = self._answers[call.data is not None, call.alone]
        return tuple(results_of(call.group)) if answer == "read" else answer

    def note_lacking(self, node: str) -> None:
        self.lacking.append(node)


def results_of(group: PageGroup) -> Iterator[PageResult]:
    for index in group.indexes:
        yield PageResult(index, b"{}", "", False, 0.1, 1.0, 0, "a")


def reader_with(answers: Mapping[tuple[bool, bool], Any], *, has_file: bool = True) -> RayReader:
    def load(file: SourceFile) -> bytes:
        if not has_file:
            raise SourceGone(f"{file.name} cannot be read.")
        return b"data"

    reader = RayReader("ray", ClusterRequest(), {}, ReadOptions(), load, 60.0)
    reader._dispatcher = ScriptedDispatcher(answers)  # type: ignore[assignment]
    reader._files = SentFiles(lambda data: data, load)
    return reader


def test_a_file_that_a_node_lacks_is_sent() -> None:
    reader = reader_with({(False, False): FileMissing("n1"), (True, False): "read"})
    assert [result.error for result in reader.read(call_of("1").group)] == ["", "", ""]
    assert reader._dispatcher.lacking == ["n1"]  # type: ignore[union-attr]


def test_a_file_that_nobody_has_fails_as_it_does_in_one_process() -> None:
    reader = reader_with({(False, False): FileMissing("n1")}, has_file=False)
    group = call_of("1").group
    error = SourceGone("1 cannot be read.")
    assert list(reader.read(group)) == [failure_of(group, number, error) for number in group.pages]
    assert reader._dispatcher.lacking == []  # type: ignore[union-attr]


def test_pages_of_a_group_that_ends_actors_are_read_alone_and_fail_alone() -> None:
    ended = ActorsEnded(3)
    [*results] = reader_with({(False, False): ended, (False, True): ended}).read(call_of("1").group)
    assert [(result.index, result.error, result.is_retryable) for result in results] == [
        (index, "image_crashes_engine", False) for index in range(3)
    ]
    [*results] = reader_with({(False, False): ended, (False, True): "read"}).read(call_of("1").group)
    assert [result.error for result in results] == ["", "", ""]


# Files that are sent.


def test_a_file_is_sent_once_to_all_who_read_it_and_others_wait_for_room() -> None:
    loaded: list[str] = []

    def load(file: SourceFile) -> bytes:
        loaded.append(file.name)
        return b"data"

    files = SentFiles(lambda data: data, load, most_bytes=15)
    is_sent = threading.Event()

    def send_other() -> None:
        with files.reference_to(file_of("other")):
            is_sent.set()

    with files.reference_to(file_of("first")), files.reference_to(file_of("first")):
        waiting = threading.Thread(target=send_other)
        waiting.start()
        assert not is_sent.wait(0.05)
        assert loaded == ["first"]
    waiting.join(10)
    assert (loaded, is_sent.is_set()) == (["first", "other"], True)


def test_a_file_larger_than_the_room_is_sent_by_itself() -> None:
    files = SentFiles(lambda data: data, lambda _file: b"data", most_bytes=5)
    with files.reference_to(file_of("large", 100)) as reference:
        assert reference == b"data"


# The actors.


class Handle:
    """An actor as Ray gives it: what it was asked, answered by the test."""

    def __init__(self) -> None:
        self.placed, self.started = (Future[Any](), Future[Any]())
        self.node = self._method(self.placed)
        self.start = self._method(self.started)

    @staticmethod
    def _method(future: Future[Any]) -> Any:
        return SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: future))


class Cluster:
    """A pool over a cluster that says what the test says."""

    def __init__(self, request: ClusterRequest, free: Mapping[str, float] | None = None) -> None:
        self.now = 0.0
        self.free = dict(free or {"CPU": 4.0})
        self.handles: list[Handle] = []
        self.killed: list[Handle] = []
        self.assignment = Assignment()
        ray: Any = SimpleNamespace(
            kill=self.killed.append,
            nodes=lambda: [NODE],
            available_resources=lambda: self.free,
            cluster_resources=lambda: NODE["Resources"],
        )
        events: list[tuple[Any, StartingActor, Future[Any]]] = []
        self._events = events
        self.pool = ActorPool(
            ray,
            request,
            self._make,
            self.assignment,
            lambda starting, future: events.append((self.pool.take_placed, starting, future)),
            lambda starting, future: events.append((self.pool.take_started, starting, future)),
            lambda: self.now,
        )

    def _make(self) -> Handle:
        self.handles.append(Handle())
        return self.handles[-1]

    def adapt(self, seconds: float = 0.0) -> int:
        """Let time pass, and give how many actors were asked for then."""
        before = len(self.handles)
        self.now += seconds
        self.pool.adapt()
        return len(self.handles) - before

    def answer(self, handle: Handle, said: object) -> None:
        """The actor is placed, and answers its start."""
        handle.placed.set_result("node")
        if isinstance(said, BaseException):
            handle.started.set_exception(said)
        else:
            handle.started.set_result(said)
        while self._events:
            take, starting, future = self._events.pop(0)
            take(starting, future)


def started(model: str = "m", version: str = __version__) -> ActorStarted:
    identity = {"engine": "fake", "model": model, "version": "1"}
    return ActorStarted(identity, version, "cpu none none", 3, "node", "host/1")


def test_as_many_actors_are_asked_for_as_there_is_room_for() -> None:
    cluster = Cluster(ClusterRequest(cpus=2.0))
    assert cluster.adapt() == 2
    for handle in cluster.handles:
        cluster.answer(handle, started())
    assert cluster.assignment.at_once == 6
    cluster.free = {"CPU": 0.5}
    assert cluster.adapt(2) == 0


def test_parts_of_a_gpu_are_counted_exactly() -> None:
    assert ClusterRequest(cpus=0.1, gpus=0.1).room_in({"CPU": 1.0, "GPU": 1.0}) == 10
    assert ClusterRequest(options={"resources": {"scanner": 1}}).room_in({"CPU": 8.0}) == 0


def test_an_actor_that_finds_no_room_is_withdrawn_unless_it_was_asked_for_by_number() -> None:
    for request, withdrawn in ((ClusterRequest(), 3), (ClusterRequest(actors=4), 0)):
        cluster = Cluster(request)
        assert cluster.adapt() == 4
        cluster.answer(cluster.handles[0], started())
        cluster.adapt(61)
        assert len(cluster.killed) == withdrawn


def test_an_actor_that_ends_is_replaced() -> None:
    cluster = Cluster(ClusterRequest(actors=1))
    cluster.adapt()
    cluster.answer(cluster.handles[0], started())
    cluster.pool.remove(cluster.assignment.actors[0], "Its node has died.")
    assert (cluster.killed, cluster.assignment.actors) == ([cluster.handles[0]], [])
    assert cluster.adapt(2) == 1


def test_actors_with_another_engine_are_not_used() -> None:
    cluster = Cluster(ClusterRequest(actors=3))
    cluster.adapt()
    for handle, said in zip(cluster.handles, (started(), started("other"), started(version="0")), strict=True):
        cluster.answer(handle, said)
    assert (len(cluster.assignment.actors), cluster.killed) == (1, cluster.handles[1:])
    assert cluster.adapt(2) == 0


def test_a_first_actor_of_another_version_or_without_an_engine_stops_the_run() -> None:
    refused = ActorRefused("The model is damaged.", "Install it again.", "host/1")
    for said, error in (
        (started(version="0"), RunChanged),
        (refused, ClusterUnavailable),
        (ImportError("No module named 'ocrsvc'"), ClusterUnavailable),
    ):
        cluster = Cluster(ClusterRequest())
        cluster.adapt()
        with pytest.raises(error):
            cluster.answer(cluster.handles[0], said)


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
        check_listens(own_address())


def test_settings_are_sent_without_secrets() -> None:
    environment = {"OCRSVC_ENGINE": "fake", "OCRSVC_MODELS_KEY": "c2VjcmV0", "OCRSVC_CACHE_URL": "redis://:secret@host"}
    sent = settings_to_send(environment, ClusterRequest(cpus=3.0))
    assert "secret" not in str(sent)
    assert (sent["engine"].value, sent["engine_threads"].value) == ("fake", "3")
    assert "models_key" not in sent


@pytest.mark.parametrize("text", ["{", "[]", '{"num_cpus": 2}', '{"max_restarts": 1}'])
def test_options_of_actors_are_checked(text: str) -> None:
    with pytest.raises(BadOption):
        _options_of(text)
