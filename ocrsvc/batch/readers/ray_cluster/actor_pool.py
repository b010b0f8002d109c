"""The actors of a run on a Ray cluster: starts as many as are wanted, and notices those that end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc import __version__
from ocrsvc.batch.readers.ray_cluster.actor_messages import ActorRefused, ActorStarted
from ocrsvc.batch.readers.ray_cluster.assignment import Actor, Assignment
from ocrsvc.batch.readers.ray_cluster.cluster_request import ClusterRequest
from ocrsvc.errors import ClusterUnavailable, RunChanged

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_SAY_S: Final = 20.0
_SAY_PENDING_S: Final = 60.0
_WITHDRAW_S: Final = 60.0
_ASK_AGAIN_S: Final = 300.0
_MOST_FAILED_STARTS: Final = 5


@dataclass(slots=True, eq=False)
class StartingActor:
    """An actor that is not ready yet: Ray's handle, since when it was asked for, and whether a node has it."""

    handle: Any
    since_s: float
    is_placed: bool = False


class ActorPool:
    """For one thread, which passes on what Ray says.

    Args:
        ray: The module, connected.
        request: What actors.
        make: Makes an actor; gives Ray's handle.
        assignment: Is told which are ready, and which have ended.
        on_placed, on_started: Called in a thread of Ray when a node has an actor, and when it has answered its start;
            with what `take_placed` and `take_started` take.
        clock: Seconds.

    Attributes:
        identity: Engine, model and version of the first that was ready; None until then.
    """

    def __init__(
        self,
        ray: Any,
        request: ClusterRequest,
        make: Callable[[], Any],
        assignment: Assignment,
        on_placed: Callable[[StartingActor, Any], None],
        on_started: Callable[[StartingActor, Any], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ray, self._request, self._make = ray, request, make
        self._assignment, self._on_placed, self._on_started = assignment, on_placed, on_started
        self._clock = clock
        self._starting: set[StartingActor] = set()
        self._refused = 0
        self._failed_starts = 0
        self._last_failure = ""
        self._none_since_s: float | None = self._clock()
        self._failed_s = 0.0
        self._said_s = self._clock()
        self._ask_again_s = 0.0
        self.identity: Mapping[str, str] | None = None
        self._computes_on = ""

    def adapt(self) -> None:
        """Start what is missing, withdraw what finds no room; called every second or so.

        Raises:
            ClusterUnavailable: There has been no actor for too long.
        """
        now = self._clock()
        for _ in range(self._missing(now)):
            self._start()
        if self._request.actors is None and self._assignment.actors:
            self._withdraw(now)
        self._say_pending(now)
        self._check_any(now)

    def take_placed(self, starting: StartingActor, future: Any) -> None:
        """A node has the actor, unless it has ended: then its start says why."""
        starting.is_placed = future.exception() is None

    def take_started(self, starting: StartingActor, future: Any) -> None:
        """An actor has answered its start, or has ended instead. Raises RunChanged and ClusterUnavailable."""
        if starting not in self._starting:
            return
        self._starting.remove(starting)
        try:
            said = future.result()
        except Exception as error:  # noqa: BLE001  whatever kept it from starting: it is counted, and told
            self._take_failure(starting, first_line(error))
            return
        if isinstance(said, ActorRefused):
            self._take_failure(starting, f"{said.detail} {said.remedy} ({said.host})")
        else:
            self._take_ready(starting, said)

    def remove(self, actor: Actor, reason: str) -> None:
        """An actor has ended, or is to."""
        if actor not in self._assignment.actors:
            return
        LOGGER.warning("Actor %s has ended; its %d groups are read again. %s", actor.host, len(actor.calls), reason)
        self._kill(actor.handle)
        self._assignment.remove_actor(actor)

    def end(self) -> None:
        """End all of them."""
        for handle in [actor.handle for actor in self._assignment.actors] + [one.handle for one in self._starting]:
            self._kill(handle)

    def _missing(self, now: float) -> int:
        if self._failed_starts and now - self._failed_s < min(2.0**self._failed_starts, 60.0):
            return 0
        there = len(self._assignment.actors) + len(self._starting)
        if self._request.actors is not None:
            return max(0, self._request.actors - self._refused - there)
        if self._starting or now < self._ask_again_s:
            return 0
        most = sum(self._request.room_in(node["Resources"]) for node in self._ray.nodes() if node["Alive"])
        room = min(self._request.room_in(self._ray.available_resources()), most - there) - self._refused
        return max(room, 0 if there else 1)

    def _start(self) -> None:
        starting = StartingActor(self._make(), self._clock())
        self._starting.add(starting)
        placed, started = starting.handle.node.remote().future(), starting.handle.start.remote().future()
        placed.add_done_callback(lambda done: self._on_placed(starting, done))
        started.add_done_callback(lambda done: self._on_started(starting, done))

    def _withdraw(self, now: float) -> None:
        """Of those that nobody asked for by number, the ones without a place: a cluster would grow for them."""
        for starting in self._pending(now, _WITHDRAW_S):
            self._starting.remove(starting)
            self._kill(starting.handle)
            self._ask_again_s = now + _ASK_AGAIN_S

    def _pending(self, now: float, for_s: float) -> list[StartingActor]:
        return [one for one in self._starting if not one.is_placed and now - one.since_s > for_s]

    def _say_pending(self, now: float) -> None:
        """Of actors that were asked for by number: that some wait for room, each minute."""
        pending = self._pending(now, _SAY_S) if self._assignment.actors and self._request.actors else []
        if pending and now - self._said_s > _SAY_PENDING_S:
            self._said_s = now
            LOGGER.warning("%d of %d actors wait for room. %s", len(pending), self._request.actors, self._lack())

    def _take_failure(self, starting: StartingActor, reason: str) -> None:
        self._kill(starting.handle)
        self._failed_starts += 1
        self._failed_s, self._last_failure = self._clock(), reason
        LOGGER.warning("An actor could not be started: %s", reason)
        # The first actor shows whether the settings and the nodes will do; later ones may meet one bad node.
        if not self._assignment.actors and (self.identity is None or self._failed_starts >= _MOST_FAILED_STARTS):
            raise ClusterUnavailable(
                f"No actor can be started: {reason}",
                "Every node needs ocrsvc and its engine: see docs/batch_clusters.md.",
            )

    def _take_ready(self, starting: StartingActor, said: ActorStarted) -> None:
        if said.ocrsvc != __version__ or (self.identity is not None and said.identity != self.identity):
            self._refuse(starting, said)
            return
        if self.identity is None:
            self.identity, self._computes_on = said.identity, said.computes_on
        if said.computes_on != self._computes_on:
            LOGGER.warning(
                "Actor %s computes on %s, and the first on %s: digits of confidences may differ. OCRSVC_PROVIDER and "
                "OCRSVC_DEVICE make them alike.",
                said.host,
                said.computes_on,
                self._computes_on,
            )
        self._failed_starts, self._none_since_s = 0, None
        self._assignment.add_actor(Actor(starting.handle, said.host, said.node, said.at_once))

    def _refuse(self, starting: StartingActor, said: ActorStarted) -> None:
        """An actor that would read otherwise than the others; the only one stops the run, a later one is left out."""
        self._kill(starting.handle)
        theirs = " ".join([*said.identity.values(), "of ocrsvc", said.ocrsvc])
        ours = " ".join([*(self.identity or {}).values(), "of ocrsvc", __version__])
        if self.identity is None:
            raise RunChanged(
                f"Actor {said.host} reads with {theirs}, and this command is {ours}.",
                "Install the same version on every node.",
            )
        self._refused += 1
        LOGGER.warning("Actor %s is not used: it reads with %s, and the others with %s.", said.host, theirs, ours)

    def _check_any(self, now: float) -> None:
        """Say why nothing is read; raises ClusterUnavailable when it has been so for too long."""
        if self._assignment.actors:
            self._none_since_s = None
            return
        if self._none_since_s is None:
            self._none_since_s = now
        if now - self._none_since_s > self._request.wait_s:
            raise ClusterUnavailable(
                f"No actor was ready for {self._request.wait_s:g} s. {self._lack()}",
                "Give actors less, or the cluster more; then the same command goes on.",
            )
        if now - max(self._said_s, self._none_since_s) > _SAY_S:
            self._said_s = now
            LOGGER.warning("Waiting for an actor. %s", self._lack())

    def _lack(self) -> str:
        """What is being started, or else what an actor needs, and what there is."""
        placed = sum(one.is_placed for one in self._starting)
        if placed:
            return f"{placed} have a place, and load their engines."
        needs = self._request.needs()
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        found = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name} free" for name in needs)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        fits = any(self._request.room_in(node["Resources"]) for node in nodes)
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
        said = f"Each needs {wanted}; the cluster has {found} on {len(nodes)} nodes."
        return f"{said} {'' if fits else 'No node is large enough. '}{self._last_failure}".rstrip()

    def _kill(self, handle: Any) -> None:
        try:
            self._ray.kill(handle)
        except Exception as error:  # noqa: BLE001  it has ended, or the cluster has: all the same here
            LOGGER.debug("An actor could not be ended: %s", first_line(error))


def first_line(error: BaseException) -> str:
    """What Ray says of an error, in one line; its own errors go on for many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:250] or type(error).__name__
