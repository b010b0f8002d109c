"""A request that crashes or blocks its worker is logged with its id and refused by the other workers."""

import io
import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import create_autospec

import grpc
import pytest
import requests
from blocking_app import DIES, HOLDS
from grpc_support import V2, calling, infer_request, known_model, serving, unary
from image_support import png
from support import Server, start_server
from web_support import KnownEngine, running_reader

from ocrsvc.app import create_app
from ocrsvc.engines.contract import EngineTraits
from ocrsvc.errors import BrokenImage, RequestStopsWorker
from ocrsvc.imaging.codecs.decode import PixelLimits, open_encoded_image
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline import decode_job
from ocrsvc.pipeline.decode_job import make_read_request
from ocrsvc.results import ReadOptions
from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits
from ocrsvc.serving.request_guard import InFlight, InFlightTable, RequestGuard, Stage, digest_of, take_body, waiting
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.worker_table import State
from ocrsvc.worker import hooks, hung_requests
from ocrsvc.worker.hung_requests import HungRequests, find_suspects
from ocrsvc.worker.service_context import ServiceContext

ANSWER_S = 20.0
BODY = b"a body" * 3000
PID = 4711
HOLDING = ("gunicorn", "-c", "gunicorn.conf.py", "--pythonpath", "tests", "blocking_app:app")


@dataclass
class SharedState:
    """The state that the arbiter shares with one worker, and the arbiter's log."""

    table: InFlightTable = field(default_factory=lambda: InFlightTable(2, rows=4))
    denylist: CrashDenylist = field(default_factory=lambda: CrashDenylist(8, 60.0))
    lines: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.log = logging.Logger("arbiter")  # noqa: LOG001  a new logger per test, with its own filters
        self.log.addHandler(logging.StreamHandler(self.lines))
        self.guard = RequestGuard(self.table.recorder(1), self.denylist)
        self.suspects = HungRequests(self.table, self.denylist, self.log)

    def deny(self, body: bytes) -> None:
        self.denylist.note(digest_of(body), CRASHES, "held a worker")

    def stages(self) -> list[Stage]:
        return [request.stage for request in self.table.read(1)]

    def die_with(self, *bodies: bytes, waits: bool = False) -> None:
        pid = os.fork()
        if pid == 0:
            with ExitStack() as requests:
                for body in bodies:
                    requests.enter_context(self.guard.request("/v1/ocr"))
                    take_body(body, "an-id\n")
                with waiting() if waits else nullcontext():
                    os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        self.suspects.note_exit(pid, 1, expected=False)
        self.table.clear(1)

    @property
    def limits(self) -> SharedLimits:
        return SharedLimits(Budget(1 << 26), Callers(0), self.guard)


@pytest.fixture
def shared() -> SharedState:
    return SharedState()


def test_a_thread_that_decodes_for_a_request_is_recorded(shared: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Stage]] = []

    def decode_pixels(_picture: object, **_how: object) -> NoReturn:
        seen.append(shared.stages())
        raise BrokenImage("not a picture")

    monkeypatch.setattr(decode_job, "decode_pixels", decode_pixels)
    with shared.guard.request("/v1/ocr"):
        take_body(BODY)
        request = replace(make_read_request(ReadOptions(), 0.0), lease=create_autospec(Lease, instance=True))
        job = decode_job.DecodeJob(request, EngineTraits())
        job.open(open_encoded_image(png(), PixelLimits(10**8)))
        with waiting():
            engine = threading.Thread(target=decode_job._task_or_error, args=(job,))
            engine.start()
            engine.join()
        assert shared.stages() == [Stage.WORKING]
    assert seen == [[Stage.WAITING, Stage.DECODING]]


def test_more_requests_than_rows_are_served_without_a_record(shared: SharedState) -> None:
    with ExitStack() as requests_at_once:
        for _ in range(6):
            requests_at_once.enter_context(shared.guard.request("/v1/ocr"))
            take_body(BODY)
        assert len(shared.stages()) == 4
    assert shared.stages() == []


def test_a_denied_body_is_answered_422_over_http_and_others_are_not(shared: SharedState) -> None:
    shared.deny(BODY)
    with shared.guard.request("/v1/ocr"), pytest.raises(RequestStopsWorker):
        take_body(BODY)
    with shared.guard.request("/v1/ocr"):
        take_body(BODY + b".")
        take_body(b"")
    with running_reader(opener=KnownEngine) as reader:
        client = create_app(Settings(), reader, limits=shared.limits).test_client()
        assert client.post("/v1/ocr", data=png()).status_code == 200
        shared.deny(png())
        answer = client.post("/v1/ocr", data=png())
        assert (answer.status_code, answer.get_json()["code"]) == (422, "request_stops_worker")
    assert shared.stages() == []


def test_a_denied_message_is_refused_over_grpc(shared: SharedState) -> None:
    request = infer_request(png())
    with known_model() as methods, serving(methods, shared=shared.limits) as server:
        port = server._listeners[0].getsockname()[1]
        with calling(port) as channel:
            call = unary(channel, V2 + "ModelInfer", "inference.ModelInferResponse")
            call(request, timeout=ANSWER_S)
            shared.deny(request.SerializeToString())
            with pytest.raises(grpc.RpcError) as refused:
                call(request, timeout=ANSWER_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert shared.stages() == []


@pytest.mark.parametrize(
    ("used_s", "stages", "blamed"),
    [
        ((29.0, 0.4, 0.0), (), ["a"]),
        ((5.0, 1.0, 0.0), (), ["a"]),
        ((29.0, 28.0, 0.1), (), ["a", "b"]),
        ((0.5, 0.4, 0.0), (), []),
        ((29.0, 12.0, 0.0), (Stage.WAITING,), []),
        ((0.0, 29.0, 0.0), (Stage.WAITING, Stage.DECODING), ["b"]),
    ],
)
def test_computing_threads_are_blamed(used_s: Sequence[float], stages: Sequence[Stage], blamed: Sequence[str]) -> None:
    stages = (*stages, *[Stage.WORKING] * 3)[:3]
    numbered = zip("abc", stages, strict=True)
    in_flight = [InFlight(name, "/v1/ocr", 5, name.encode().ljust(16), stage, 1, 0.0) for name, stage in numbered]
    assert [request.id for request in find_suspects(in_flight, used_s, timeout_s=30.0)] == list(blamed)


@pytest.mark.parametrize(
    ("deaths", "bodies", "denied"),
    [
        (1, [BODY], False),
        (2, [BODY], True),
        (3, [BODY, b"another body"], False),  # either body may be the cause, e.g. if a proxy retries both at once
        (2, [BODY, BODY], True),  # two requests with the same body count as one
    ],
)
def test_two_deaths_deny_a_body(shared: SharedState, deaths: int, bodies: Sequence[bytes], *, denied: bool) -> None:
    for _ in range(deaths):
        shared.die_with(*bodies)
    assert (shared.denylist.crashes(digest_of(BODY)) >= CRASHES) is denied
    assert ("DENIED" in shared.lines.getvalue()) is denied
    assert "id=an-id? route=/v1/ocr bytes=18000" in shared.lines.getvalue()
    assert shared.lines.getvalue().count("LOST") == deaths * len(bodies)


@pytest.mark.parametrize(("bodies", "denied"), [([BODY], 1), ([BODY, BODY], 1), ([BODY, b"another body"], 0)])
def test_a_body_is_denied_at_once_if_no_other_request_computed(
    shared: SharedState, monkeypatch: pytest.MonkeyPatch, bodies: Sequence[bytes], denied: int
) -> None:
    monkeypatch.setattr(hung_requests, "read_cpu_s", lambda _pid, _thread: 1e6)
    with ExitStack() as requests:
        for body in bodies:
            requests.enter_context(shared.guard.request("/v1/ocr"))
            take_body(body)
        for pid in (PID, PID + 1):
            shared.suspects.note_signal(pid, 1, signal.SIGABRT, timeout_s=30.0)
        assert [entry.hash for entry in shared.denylist.entries()] == [digest_of(BODY).hex()] * denied
    assert shared.lines.getvalue().count("HELD") == 2 * len(bodies)


def test_a_body_answered_between_two_crashes_is_not_denied(shared: SharedState) -> None:
    for _ in range(3):
        shared.die_with(BODY)
        with shared.guard.request("/v1/ocr"):
            take_body(BODY)
    assert shared.denylist.is_empty() or shared.denylist.crashes(digest_of(BODY)) == 0


def test_waiting_requests_are_reported_but_not_suspected(shared: SharedState) -> None:
    for _ in range(2):
        shared.die_with(BODY, waits=True)
    assert "stage=waiting" in shared.lines.getvalue()
    assert shared.denylist.entries() == []


def test_killing_an_idle_or_stopping_worker_blames_no_body(shared: SharedState) -> None:
    with shared.guard.request("/v1/ocr"):
        take_body(BODY, "an-id")
        shared.suspects.note_exit(PID, 1, expected=True)
        assert shared.lines.getvalue() == ""
        for pid in (PID, PID + 1):
            shared.suspects.note_signal(pid, 1, signal.SIGABRT, timeout_s=1e6)
    assert "LOST with worker 4712: id=an-id" in shared.lines.getvalue()
    assert shared.denylist.entries() == []


@pytest.mark.parametrize(
    ("state", "ends_by_itself", "died"),
    [
        (State.BOOTING, False, False),
        (State.READY, False, True),
        (State.DRAINING, False, True),
        (State.DRAINING, True, False),
    ],
)
def test_a_request_can_be_blamed_while_its_worker_drains(
    shared: SharedState, monkeypatch: pytest.MonkeyPatch, state: State, *, ends_by_itself: bool, died: bool
) -> None:
    context = ServiceContext(Settings())
    context.in_flight, context.hung_requests = shared.table, shared.suspects
    monkeypatch.setattr(hooks, "current_service", lambda: context)
    table, place = context.controller.worker_table, 1
    table.entry(place).state, table.head.high, table.head.ever_ready = state, 2, 1
    worker: Any = SimpleNamespace(pid=PID, slot_number=place, entry=table.entry(place))
    server: Any = SimpleNamespace(num_workers=0, log=shared.log)
    with shared.guard.request("/v1/ocr"):
        take_body(BODY)
        if ends_by_itself:
            hooks.worker_exit(server, worker)
        hooks.child_exit(server, worker)
    assert ("DIED" in shared.lines.getvalue()) is died


def post(server: Server, body: bytes, path: str = "/hold") -> requests.Response:
    headers = {"X-Request-Id": "the-bad-one"}
    return requests.post(f"{server.url}{path}", data=body, headers=headers, timeout=ANSWER_S)


def test_a_request_that_blocks_a_worker_cannot_block_a_second_one() -> None:
    body = HOLDS * 1000
    with start_server({"OCRSVC_WORKERS": "2"}, ["--timeout", "4"], command=HOLDING) as server:
        server.wait_for("READY in", count=2)
        with pytest.raises(requests.ConnectionError):
            post(server, body)
        # Retry at once like a proxy, before the next worker has started.
        answers = [post(server, body, path) for path in ("/hold", "/v1/ocr", "/hold", "/hold", "/hold")]
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(422, "request_stops_worker")}
        assert post(server, b"another body").text == "served"
        held = server.wait_for(r"HELD worker \d+, which is .*: id=the-bad-one route=/hold bytes=16000 hash=(\w+)")
        server.wait_for(r"SIGKILL! It sent no heartbeat")
        server.wait_for("READY in", count=3)
        entries = requests.get(f"{server.url}/ops/denylist", timeout=ANSWER_S).json()["requests"]
        assert [entry["hash"] for entry in entries] == [held[1]]
        assert server.log.count("WORKER TIMEOUT") == 1
        assert HOLDS.decode() not in server.log
        assert "out of memory" not in server.log


def test_a_body_that_killed_two_workers_is_refused() -> None:
    with start_server({"OCRSVC_WORKERS": "1"}, command=HOLDING) as server:
        for death in (1, 2):
            server.wait_for("READY in", count=death)
            with suppress(requests.ConnectionError):
                post(server, DIES)
            server.wait_for(r"LOST with worker \d+: id=the-bad-one route=/hold", count=death)
        server.wait_for("READY in", count=3)
        assert post(server, DIES).status_code == 422
        assert post(server, b"another body").text == "served"
