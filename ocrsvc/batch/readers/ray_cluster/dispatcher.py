"""The thread that leads the actors of a Ray cluster: gives them groups, and passes on what they read."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ocrsvc.batch.readers.ray_cluster.actor_messages import FileMissing
from ocrsvc.batch.readers.ray_cluster.actor_pool import ActorPool, StartingActor, first_line
from ocrsvc.batch.readers.ray_cluster.assignment import Actor, Answer, Assignment, Call
from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.errors import ClusterUnavailable

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_ADAPT_S: Final = 2.0
_SPARE_S: Final = 120.0
_LOOK_S: Final = 1.0
_STOP_S: Final = 5.0


class Dispatcher:
    """Has groups read by actors; its methods are for any thread.

    Args:
        ray: The module, connected.
        request: What actors.
        make: Makes an actor.
        page_limit_s: Seconds that a page may take.
    """

    def __init__(self, ray: Any, request: ClusterRequest, make: Callable[[], Any], page_limit_s: float) -> None:
        self._page_limit_s = page_limit_s
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._assignment = Assignment()
        self._pool = ActorPool(ray, request, make, self._assignment, self._when_placed, self._when_started)
        self._lacking: set[str] = set()
        self._first = threading.Event()
        self._closed, self._ended = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._lead, name="ray-dispatcher", daemon=True)

    @property
    def at_once(self) -> int:
        """Groups that the actors there are read at once; at least 1."""
        return self._assignment.at_once

    def start(self) -> Mapping[str, str]:
        """Returns the identity of the first actor that is ready. Raises OcrsvcError."""
        self._thread.start()
        self._first.wait()
        if self._failure is not None:
            raise self._failure
        return dict(self._pool.identity or {})

    def read(self, call: Call) -> Answer:
        """What became of a call. Raises what ends the run: OcrsvcError, or what an actor did not expect."""
        self._events.put(partial(self._assignment.add_call, call))
        while True:
            with suppress(queue.Empty):
                answer = call.answer.get(timeout=_LOOK_S)
                break
            if self._ended.is_set():
                raise self._failure or _ended()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def note_lacking(self, node: str) -> None:
        """Files of this run are not on this node (Ray's id)."""
        self._events.put(partial(self._lacking.add, node))

    def close(self) -> None:
        """End the actors."""
        self._closed.set()
        self._events.put(lambda: None)
        self._thread.join(_STOP_S)

    def _lead(self) -> None:
        """The thread: what happened is done here, one thing after another."""
        try:
            while not self._closed.is_set():
                self._turn()
        except BaseException as error:  # noqa: BLE001  raised by those who wait
            self._failure = error
        self._ended.set()
        self._first.set()
        self._pool.end()

    def _turn(self) -> None:
        """Up to two seconds: look at the actors, then take what happens."""
        self._pool.adapt()
        self._end_overdue()
        end_s = time.monotonic() + _ADAPT_S
        while not self._closed.is_set() and (left_s := end_s - time.monotonic()) > 0:
            try:
                self._events.get(timeout=left_s)()
            except queue.Empty:
                return
            self._assign()

    def _assign(self) -> None:
        while (found := self._assignment.next()) is not None:
            actor, call = found
            if call.data is None and actor.node in self._lacking:
                self._assignment.end_call(actor, call)
                call.answer.put(FileMissing(actor.node))
                continue
            call.since_s = time.monotonic()
            future = actor.handle.read.remote(call.group, call.data).future()
            future.add_done_callback(partial(self._when_read, actor, call))

    def _when_read(self, actor: Actor, call: Call, future: Any) -> None:
        """In a thread of Ray, which must not wait."""
        self._events.put(partial(self._take_read, actor, call, future))

    def _when_placed(self, starting: StartingActor, future: Any) -> None:
        self._events.put(partial(self._pool.take_placed, starting, future))

    def _when_started(self, starting: StartingActor, future: Any) -> None:
        self._events.put(partial(self._take_started, starting, future))

    def _take_started(self, starting: StartingActor, future: Any) -> None:
        self._pool.take_started(starting, future)
        if self._assignment.actors:
            self._first.set()

    def _take_read(self, actor: Actor, call: Call, future: Any) -> None:
        """The answer of an actor; what Ray says instead of one is that the actor has ended."""
        from ray.exceptions import RayError, RayTaskError

        if call not in actor.calls:
            return
        try:
            answer = future.result()
        except RayTaskError:
            raise
        except RayError as error:
            self._pool.remove(actor, first_line(error))
            return
        self._assignment.end_call(actor, call)
        call.answer.put(answer)

    def _end_overdue(self) -> None:
        """Actors that have not answered for longer than their pages may take: nothing tells that they live."""
        now = time.monotonic()
        for actor in list(self._assignment.actors):
            if any(now - call.since_s > self._page_limit_s * len(call.group.pages) + _SPARE_S for call in actor.calls):
                self._pool.remove(actor, "It did not answer in time.")


def _ended() -> ClusterUnavailable:
    return ClusterUnavailable("The run has ended.", "Give the same command again to go on.")
