"""The actors of a Ray cluster: which there are, and which of them reads the next group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc import __version__
from ocrsvc.batch.readers.open_reader import ClusterRequest
from ocrsvc.batch.readers.ray_page_actor import ActorStarted
from ocrsvc.errors import ClusterUnavailable, RunChanged

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_REPORT_S: Final = 20.0
_WITHDRAW_S: Final = 60.0
_ASK_AGAIN_S: Final = 300.0
_MOST_REFUSED: Final = 5
_WAIT_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Actor:
    """An actor: Ray's handle, since when, Ray's references to its place and its start, and what is known once it reads.

    `at_once` is how many groups it can read, `calls` how many it reads.
    """

    handle: Any
    since_s: float
    placed: Any
    started: Any
    is_placed: bool = False
    host: str = ""
    node: str = ""
    at_once: int = 0
    calls: int = 0


class ActorPool:
    """Actors as many as the command asks for, by Ray's handles that `make` gives.

    `adapt` is for one thread, the rest for any.
    """

    def __init__(
        self, ray: Any, request: ClusterRequest, make: Callable[[], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ray, self._request, self._make, self._clock = ray, request, make, clock
        self.actors: list[Actor] = []
        self.identity: Mapping[str, str] | None = None
        self._changed = threading.Condition()
        self._alone = threading.Lock()
        self._reserved: Actor | None = None
        self._failure: BaseException | None = None
        self._starting: list[Actor] = []
        self._refused, self._last_reason, self._computes_on = 0, "", ""
        self._none_since_s = self._reported_s = clock()
        self._refused_s = self._ask_again_s = 0.0

    @property
    def at_once(self) -> int:
        """Groups that the actors there are read at once; at least 1."""
        return max(1, sum(actor.at_once for actor in list(self.actors)))

    def wait_for_first(self) -> Mapping[str, str]:
        """Engine, model and version of the first actor that is ready. Raises what `fail` was given."""
        with self._changed:
            self._changed.wait_for(lambda: self.identity is not None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return dict(self.identity or {})

    @contextmanager
    def taken(self, *, alone: bool = False) -> Iterator[Actor]:
        """An actor that has room for a group, and reads nothing else meanwhile if `alone`. Waits for one.

        Raises what `fail` was given.
        """
        with self._alone if alone else nullcontext():
            with self._changed:
                while (actor := self._free_alone() if alone else self._free()) is None:
                    if self._failure is not None:
                        raise self._failure
                    self._changed.wait(_WAIT_S)
                actor.calls += 1
            try:
                yield actor
            finally:
                with self._changed:
                    actor.calls -= 1
                    self._reserved = None if alone else self._reserved
                    self._changed.notify_all()

    def remove(self, actor: Actor, reason: str) -> None:
        """An actor has ended, or is to."""
        with self._changed:
            if actor not in self.actors:
                return
            self.actors.remove(actor)
            self._none_since_s = self._clock()
            self._changed.notify_all()
        LOGGER.warning("Actor %s has ended; its %d groups are read again. %s", actor.host, actor.calls, reason)
        self._kill(actor.handle)

    def fail(self, error: BaseException) -> None:
        """Nothing is read any more; whatever waits raises this."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def end(self) -> None:
        """End all actors."""
        for one in (*self.actors, *self._starting):
            self._kill(one.handle)

    def adapt(self) -> None:
        """Take actors that are ready, start what is missing, withdraw what finds no room; called each second or so.

        Raises RunChanged and ClusterUnavailable where the run cannot go on.
        """
        for starting in list(self._starting):
            self._look_at(starting)
        now = self._clock()
        for _ in range(self._missing(now)):
            handle = self._make()
            self._starting.append(Actor(handle, now, handle.node.remote(), handle.start.remote()))
        if self._request.actors is None and self.actors:
            # A cluster that scales itself would grow for those without a place, which were not asked for.
            for late in [one for one in self._starting if not one.is_placed and now - one.since_s > _WITHDRAW_S]:
                self._starting.remove(late)
                self._kill(late.handle)
                self._ask_again_s = now + _ASK_AGAIN_S
        self._check_any(now)

    def _free(self) -> Actor | None:
        free = [actor for actor in self.actors if actor.calls < actor.at_once and actor is not self._reserved]
        return max(free, key=lambda actor: actor.at_once - actor.calls, default=None)

    def _free_alone(self) -> Actor | None:
        if self._reserved not in self.actors:
            self._reserved = min(self.actors, key=lambda actor: actor.calls, default=None)
        return self._reserved if self._reserved is not None and not self._reserved.calls else None

    def _look_at(self, starting: Actor) -> None:
        """Whether an actor has a place, and has answered its start or ended instead."""
        starting.is_placed = starting.is_placed or bool(self._ray.wait([starting.placed], timeout=0)[0])
        if not self._ray.wait([starting.started], timeout=0)[0]:
            return
        self._starting.remove(starting)
        try:
            answer: ActorStarted = self._ray.get(starting.started)
        except Exception as error:  # noqa: BLE001  whatever kept it from starting: it is counted, and reported
            self._refuse(starting, first_line(getattr(error, "cause", None) or error))
            return
        if answer.ocrsvc == __version__ and self.identity in (None, answer.identity):
            self._take_ready(starting, answer)
            return
        theirs, ours = " ".join(answer.identity.values()), " ".join((self.identity or {}).values())
        reason = (
            f"Actor {answer.host} reads with {theirs} of ocrsvc {answer.ocrsvc}, and here it is {ours} {__version__}."
        )
        if self.identity is None:
            raise RunChanged(reason, "Install the same version on every node.")
        self._refuse(starting, reason)

    def _missing(self, now: float) -> int:
        """How many actors to ask for; none for a while after one was refused."""
        if self._refused and now - self._refused_s < min(2.0**self._refused, 60.0):
            return 0
        there = len(self.actors) + len(self._starting)
        if self._request.actors is not None:
            return max(0, self._request.actors - there)
        if self._starting or now < self._ask_again_s:
            return 0
        most = sum(self._request.room_in(node["Resources"]) for node in self._ray.nodes() if node["Alive"])
        room = min(self._request.room_in(self._ray.available_resources()), most - there)
        return max(room, 0 if there else 1)

    def _refuse(self, starting: Actor, reason: str) -> None:
        """An actor has not started, or would read otherwise than the others."""
        self._kill(starting.handle)
        self._refused += 1
        self._refused_s, self._last_reason = self._clock(), reason
        LOGGER.warning("An actor is not used: %s", reason)
        # The first actor shows whether the settings and the nodes will do; later ones may meet one bad node.
        if not self.actors and (self.identity is None or self._refused >= _MOST_REFUSED):
            raise ClusterUnavailable(
                f"No actor can be started: {reason}",
                "Every node needs ocrsvc and its engine: see docs/batch_clusters.md.",
            )

    def _take_ready(self, starting: Actor, answer: ActorStarted) -> None:
        self._computes_on = self._computes_on or answer.computes_on
        if answer.computes_on != self._computes_on:
            LOGGER.warning(
                "Actor %s computes on %s, and the first on %s: digits of confidences may differ. OCRSVC_PROVIDER and "
                "OCRSVC_DEVICE make them alike.",
                *(answer.host, answer.computes_on, self._computes_on),
            )
        self._refused = 0
        with self._changed:
            self.identity = answer.identity
            starting.host, starting.node, starting.at_once = answer.host, answer.node, answer.at_once
            self.actors.append(starting)
            self._changed.notify_all()

    def _check_any(self, now: float) -> None:
        """Report why actors are missing; raises ClusterUnavailable when there has been none for too long."""
        if not self.actors and now - self._none_since_s > self._request.wait_s:
            raise ClusterUnavailable(
                f"No actor was ready for {self._request.wait_s:g} s. {self._lack()}",
                "Give actors less, or the cluster more; then the same command goes on.",
            )
        is_short = not self.actors or any(not one.is_placed for one in self._starting)
        if is_short and now - self._reported_s > _REPORT_S * (3 if self.actors else 1):
            self._reported_s = now
            LOGGER.warning("%d actors read, and %d wait. %s", len(self.actors), len(self._starting), self._lack())

    def _lack(self) -> str:
        """What is being started, or else what an actor needs, and what there is."""
        if placed := sum(one.is_placed for one in self._starting):
            return f"{placed} have a place, and load their engines."
        needs = self._request.needs()
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        found = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name} free" for name in needs)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        fits = any(self._request.room_in(node["Resources"]) for node in nodes)
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
        text = f"Each needs {wanted}; the cluster has {found} on {len(nodes)} nodes."
        return f"{text} {'' if fits else 'No node is large enough. '}{self._last_reason}".rstrip()

    def _kill(self, handle: Any) -> None:
        try:
            self._ray.kill(handle)
        except Exception as error:  # noqa: BLE001  it has ended, or the cluster has: all the same here
            LOGGER.debug("An actor could not be ended: %s", first_line(error))


def first_line(error: BaseException) -> str:
    """What Ray says of an error, in one line; its own errors go on for many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:600] or type(error).__name__
