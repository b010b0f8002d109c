"""Reading with Ray actors: assignment of groups, missing files, actors that end; most tests run without Ray."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
from ocrsvc.batch.readers.ray_actor import ActorArguments, ActorStarted, room_in, settings_to_send
from ocrsvc.batch.readers.ray_reader import Actor, RayReader, check_listens
from ocrsvc.batch.request import ClusterRequest
from ocrsvc.cli.batch import actor_options_of
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption, ClusterUnavailable, OcrsvcError, RunChanged, SourceGone
from ocrsvc.results import ReadOptions

NODE = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}
GROUP = PageGroup(SourceFile("1", "1", "1", 10, 3, range(1, 4)), (1, 2, 3), (0, 1, 2))


class ActorHandle:
    """A double of Ray's actor handle: its start completes once the test adds an item to `answers`."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.start = SimpleNamespace(remote=lambda: self)


class SimulatedCluster(RayReader):
    """A reader on a simulated cluster; `answers` are the actors' answers to page groups, in order."""

    def __init__(self, request: ClusterRequest, free: Mapping[str, float] | None = None, *answers: Any) -> None:
        self.now, self.free, self.answers = 0.0, dict(free or {"CPU": 4.0}), iter(answers)
        self.handles, self.killed, self.sent = list[ActorHandle](), list[ActorHandle](), list[object]()
        arguments = ActorArguments({}, ReadOptions(), lambda _: b"data", 60.0, "")
        super().__init__("ray", request, arguments, lambda: self.now)
        self.ray = SimpleNamespace(
            kill=self.killed.append,
            nodes=lambda: [NODE],
            available_resources=lambda: self.free,
            cluster_resources=lambda: NODE["Resources"],
            wait=lambda handles, **_: ([one for one in handles if one.answers], []),
            get=self._get,
            put=lambda data: data,
        )

    def _make(self) -> ActorHandle:
        self.handles.append(ActorHandle())
        return self.handles[-1]

    @staticmethod
    def _get(handle: ActorHandle) -> object:
        if isinstance(handle.answers[0], BaseException):
            raise handle.answers[0]
        return handle.answers[0]

    def _ask(self, _actor: Actor, group: PageGroup, data: object) -> Any:
        """Return the next answer: "read", None if the node lacks the file, () if the actor ends."""
        self.sent.append(data)
        answer = next(self.answers)
        read = tuple(PageResult(index, b"{}", "", False, 0.1, 1.0, 0, "a") for index in group.indexes)
        return read if answer == "read" else answer

    def actors_started(self, seconds: float = 0.0) -> int:
        """Advance the clock; returns the number of actors started."""
        before = len(self.handles)
        self.now += seconds
        self.update()
        return len(self.handles) - before

    def answer(self, *answers: object) -> None:
        """Complete the starts of the first actors, one after the other."""
        for handle, answer in zip(self.handles, answers, strict=False):
            handle.answers.append(answer)
            self.update()


def ready(host: str = "a", at_once: int = 2, model: str = "m", version: str = __version__) -> ActorStarted:
    identity = {"engine": "fake", "model": model, "version": "1"}
    return ActorStarted(identity, version, at_once, host)


def cluster_of(*at_once: int, answers: Sequence[Any] = ()) -> SimulatedCluster:
    """A cluster with actors a, b, c, which read `at_once` groups at once."""
    cluster = SimulatedCluster(ClusterRequest(), None, *answers)
    cluster.actors += [Actor(ActorHandle(), ready(host, count)) for host, count in zip("abc", at_once, strict=False)]
    return cluster


def test_a_file_missing_on_a_node_is_sent_and_fails_if_missing_everywhere() -> None:
    cluster = cluster_of(1, answers=(None, "read", "read", None))
    for _ in range(2):
        assert [result.error for result in cluster.read(GROUP)] == ["", "", ""]
    assert cluster.sent == [None, b"data", b"data"]

    def load(file: SourceFile) -> bytes:
        raise SourceGone(f"{file.name} cannot be read.")

    cluster._arguments = cluster._arguments._replace(load=load)
    error = SourceGone("1 cannot be read.")
    assert list(cluster.read(GROUP)) == [failure_of(GROUP, number, error) for number in GROUP.pages]


def test_pages_of_a_group_that_crashes_actors_are_read_one_by_one() -> None:
    cluster = cluster_of(1, answers=((), (), "read", (), (), (), "read"))
    assert [(result.index, result.error, result.is_retryable) for result in cluster.read(GROUP)] == [
        (0, "", False),
        (1, "image_crashes_engine", False),
        (2, "", False),
    ]


def test_actors_are_started_until_resources_are_used_up() -> None:
    cluster = SimulatedCluster(ClusterRequest(cpus=2.0))
    assert cluster.actors_started() == 2
    cluster.answer(ready("a"), ready("b"))
    assert cluster.at_once == 4
    cluster.free = {"CPU": 0.5}
    assert cluster.actors_started(2) == 0
    # 0.1 GPU fits exactly ten times, without a rounding error.
    assert room_in(ClusterRequest(cpus=0.1, gpus=0.1), {"CPU": 1.0, "GPU": 1.0}) == 10
    assert room_in(ClusterRequest(options={"resources": {"scanner": 1}}), {"CPU": 8.0}) == 0


def test_actors_that_end_are_replaced_and_those_with_another_engine_are_not_used() -> None:
    cluster = SimulatedCluster(ClusterRequest(actors=3))
    cluster.update()
    cluster.answer(ready(), ready(model="other"), ready(version="0"))
    assert (len(cluster.actors), cluster.killed) == (1, cluster.handles[1:])
    assert cluster.actors_started(2) == 0
    cluster._remove(cluster.actors[0], "Its node has died.")
    assert (len(cluster.killed), cluster.actors) == (3, [])
    assert cluster.actors_started(31) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ready(version="0"), RunChanged),
        (SourceGone("The model is damaged.", "Install it again."), ClusterUnavailable),
        (ImportError("No module named 'ocrsvc'"), ClusterUnavailable),
    ],
)
def test_an_unfit_first_actor_stops_the_run(answer: object, error: type[OcrsvcError]) -> None:
    cluster = SimulatedCluster(ClusterRequest())
    cluster.update()
    with pytest.raises(error):
        cluster.answer(answer)


def test_a_run_without_an_actor_reports_missing_resources_and_ends() -> None:
    cluster = SimulatedCluster(ClusterRequest(gpus=0.5, wait_s=30.0), {"CPU": 4.0, "GPU": 0.25})
    assert cluster.actors_started() == 1
    cluster.actors_started(29)
    with pytest.raises(ClusterUnavailable, match=r"0\.5 GPU; the cluster has 4 of 4 CPU free, 0\.25 of 1 GPU free"):
        cluster.actors_started(2)


@pytest.mark.parametrize("left", ["", "127.0.0.1:{port}"], ids=["RAY_ADDRESS", "address left by a killed cluster"])
def test_dead_cluster_is_reported(free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(left.format(port=free_port))
    monkeypatch.setenv("RAY_ADDRESS", "" if left else f"127.0.0.1:{free_port}")
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{free_port} does not answer"):
        check_listens("ray")


def test_settings_are_sent_without_secrets() -> None:
    environment = {"OCRSVC_ENGINE": "fake", "OCRSVC_MODELS_KEY": "c2VjcmV0", "OCRSVC_CACHE_URL": "redis://:secret@host"}
    sent = settings_to_send(environment, ClusterRequest(cpus=3.0))
    assert "secret" not in str(sent)
    assert (sent["engine"].value, sent["engine_threads"].value) == ("fake", "3")
    assert "models_key" not in sent


@pytest.mark.parametrize("text", ["{", "[]", '{"num_cpus": 2}', '{"max_restarts": 1}'])
def test_invalid_actor_options_are_refused(text: str) -> None:
    with pytest.raises(BadOption):
        actor_options_of(text)


_WAIT_S = 60.0
_PAGES = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    # The path of a Unix socket has at most 107 characters; tmp_path is too long.
    with tempfile.TemporaryDirectory(prefix="ray") as folder, two_nodes(Path(folder)) as nodes:
        yield nodes


def batch(
    cluster: TwoNodes, sources: list[str], out: Path, *more: str, fds: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """Start `ocrsvc batch --on ray`."""
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


def test_a_dead_node_does_not_change_the_output(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake_engine(monkeypatch)
    draw_images(pages := tmp_path / "pages", _PAGES)
    with (pages / "000.png").open("rb") as file:
        # The path is valid only in the batch process, so actors read this file only if its bytes are sent.
        sources = [str(pages), f"/proc/self/fd/{file.fileno()}"]
        process = batch(cluster, sources, tmp_path / "ray", "--part-pages", "20", fds=(file.fileno(),))
        wait_until(lambda: list((tmp_path / "ray").glob("*.jsonl")), "a part is written", _WAIT_S)
        cluster.kill_second()
        said = process.communicate(timeout=_WAIT_S)[1]
        assert process.returncode == 0, said
        assert run(["batch", *sources, "--out", str(tmp_path / "local"), "--part-pages", "20"]) == 0
    assert written(tmp_path / "ray") == written(tmp_path / "local")
    assert f"{_PAGES + 1} pages read, 0 failed" in said
    assert "has ended; its" in said
