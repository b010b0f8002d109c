"""The actors of a Ray cluster: what runs on a node, which actors there are, and which of them reads the next group."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ocrsvc import __version__
from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of
from ocrsvc.batch.readers.local_reader import LocalReader
from ocrsvc.batch.request import ClusterRequest
from ocrsvc.errors import ClusterUnavailable, OcrsvcError, OperatorError, RunChanged
from ocrsvc.results import ReadOptions
from ocrsvc.settings.describe import is_secret
from ocrsvc.settings.load import RawValue, check_settings, gather

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_REPORT_S: Final = 20.0
_WITHDRAW_S: Final = 60.0
_PAUSE_S: Final = 30.0
"""Before another actor is asked for, after one did not start; ten times that after one found no room."""
_WAIT_S: Final = 1.0


class ActorArguments(NamedTuple):
    """What an actor is made of: settings without secrets, options, what loads files, and the command's folder."""

    given: Mapping[str, RawValue]
    options: ReadOptions
    load: Load
    page_limit_s: float
    folder: str


class ActorStarted(NamedTuple):
    """What an actor that is ready says about itself."""

    identity: Mapping[str, str] = {}
    ocrsvc: str = ""
    computes_on: str = ""
    at_once: int = 0
    node: str = ""
    host: str = ""


_NOTHING_SAID: Final = ActorStarted()


class PageActor:
    """On a node: one engine with its threads; its methods run in several threads of Ray."""

    def __init__(self, arguments: ActorArguments) -> None:
        self._arguments = arguments
        self._file = threading.local()
        self._host = f"{socket.gethostname()}/{os.getpid()}"

    def node(self) -> str:
        """Ray's id of the node that has the actor."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def start(self) -> ActorStarted:
        """Open the engine. Raises OcrsvcError, which Ray carries to the command."""
        arguments = self._arguments
        with suppress(OSError):
            os.chdir(arguments.folder)
        secrets = {name: value for name, value in gather(os.environ).items() if is_secret(name)}
        settings = check_settings(secrets | dict(arguments.given))
        reader = LocalReader(settings, arguments.options, lambda _: bytes(self._file.data), arguments.page_limit_s)
        identity = reader.start()
        self._reader = reader
        return ActorStarted(identity, __version__, reader.computes_on, reader.at_once, self.node(), self._host)

    def read(self, group: PageGroup, data: bytes | None) -> tuple[PageResult, ...] | None:
        """The results of a group's pages; `data` is the file, None where it is to be loaded here.

        None where loading fails in a way that is this node's: another machine may have the file.
        """
        try:
            self._file.data = self._arguments.load(group.file) if data is None else data
        except OperatorError:
            return None
        except OcrsvcError as error:
            return tuple(failure_of(group, number, error, worker=self._host) for number in group.pages)
        results = tuple(replace(result, worker=self._host) for result in self._reader.read(group))
        self._file.data = b""
        return results


@dataclass(slots=True, eq=False)
class Actor:
    """An actor: Ray's handle, and its references to the actor's place and start; `calls` are groups that it reads."""

    handle: Any
    since_s: float
    placed: Any
    started: Any
    is_placed: bool = False
    said: ActorStarted = _NOTHING_SAID
    calls: int = 0


class ActorPool:
    """As many actors as the command asks for; `make` gives Ray's handle of a new one. `adapt` is for one thread."""

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
        self._last_reason = self._computes_on = ""
        self._none_since_s = self._reported_s = clock()
        self._ask_at_s = 0.0

    @property
    def at_once(self) -> int:
        """Groups that all actors read at once; at least 1."""
        return max(1, sum(actor.said.at_once for actor in list(self.actors)))

    def wait_for_first(self) -> Mapping[str, str]:
        """Engine, model and version of the first actor that is ready. Raises what `fail` was given."""
        with self._changed:
            self._changed.wait_for(lambda: self.identity is not None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return dict(self.identity or {})

    @contextmanager
    def taken(self, *, alone: bool = False) -> Iterator[Actor]:
        """Wait for an actor with room for a group; `alone` it reads nothing else. Raises what `fail` was given."""
        with self._alone if alone else nullcontext():
            with self._changed:
                while (actor := self._free(alone=alone)) is None:
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

    def _free(self, *, alone: bool = False) -> Actor | None:
        """The actor with the most free places, or the one that is reserved for what is read alone."""
        if alone:
            if self._reserved not in self.actors:
                self._reserved = min(self.actors, key=lambda actor: actor.calls, default=None)
            return self._reserved if self._reserved is not None and not self._reserved.calls else None
        places = {actor: actor.said.at_once - actor.calls for actor in self.actors if actor is not self._reserved}
        actor = max(places, key=places.__getitem__, default=None)
        return actor if actor is not None and places[actor] > 0 else None

    def remove(self, actor: Actor, reason: str) -> None:
        """An actor has ended, or is to."""
        with self._changed:
            if actor not in self.actors:
                return
            self.actors.remove(actor)
            self._none_since_s = self._clock()
            self._changed.notify_all()
        LOGGER.warning("Actor %s has ended; its %d groups are read again. %s", actor.said.host, actor.calls, reason)
        self._kill(actor)

    def fail(self, error: BaseException) -> None:
        """Nothing is read any more: all waiting threads raise this."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def end(self) -> None:
        """End all actors."""
        for one in (*self.actors, *self._starting):
            self._kill(one)

    def adapt(self) -> None:
        """Take actors that are ready, ask for missing ones, withdraw those without room; call it each second.

        Raises RunChanged and ClusterUnavailable where the run cannot go on.
        """
        for starting in list(self._starting):
            starting.is_placed = starting.is_placed or bool(self._ray.wait([starting.placed], timeout=0)[0])
            if self._ray.wait([starting.started], timeout=0)[0]:
                self._starting.remove(starting)
                self._take(starting)
        now = self._clock()
        for _ in range(self._missing(now)):
            handle = self._make()
            self._starting.append(Actor(handle, now, handle.node.remote(), handle.start.remote()))
        if self._request.actors is None and self.actors:
            # A cluster that scales itself would grow for actors without a place, which the command did not ask for.
            for late in [one for one in self._starting if not one.is_placed and now - one.since_s > _WITHDRAW_S]:
                self._starting.remove(late)
                self._kill(late)
                self._ask_at_s = now + 10 * _PAUSE_S
        self._check_any(now)

    def _take(self, starting: Actor) -> None:
        """Use an actor that has answered its start, unless it has failed or would read otherwise than the others."""
        try:
            said = starting.said = self._ray.get(starting.started)
        except Exception as error:  # noqa: BLE001  anything may keep it from starting; it is reported
            self._refuse(starting, first_line(getattr(error, "cause", None) or error))
            return
        if said.ocrsvc != __version__ or self.identity not in (None, said.identity):
            ours = f"{' '.join((self.identity or {}).values())} {__version__}"
            reason = f"Actor {said.host} reads with {' '.join(said.identity.values())} of ocrsvc {said.ocrsvc}"
            if self.identity is None:
                raise RunChanged(f"{reason}, and here it is {ours}.", "Install the same version on every node.")
            self._refuse(starting, f"{reason}, and here it is {ours}.")
            return
        self._computes_on = self._computes_on or said.computes_on
        if said.computes_on != self._computes_on:
            warning = "Actor %s computes on %s, and the first on %s: confidences may differ. See OCRSVC_PROVIDER."
            LOGGER.warning(warning, said.host, said.computes_on, self._computes_on)
        with self._changed:
            self.identity = said.identity
            self.actors.append(starting)
            self._changed.notify_all()

    def _missing(self, now: float) -> int:
        there = len(self.actors) + len(self._starting)
        if now < self._ask_at_s:
            return 0
        if self._request.actors is not None:
            return max(0, self._request.actors - there)
        if self._starting:
            return 0
        most = sum(room_in(self._request, node) for node in self._nodes())
        room = min(room_in(self._request, self._ray.available_resources()), most - there)
        return max(room, 0 if there else 1)

    def _nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _refuse(self, starting: Actor, reason: str) -> None:
        self._kill(starting)
        self._ask_at_s, self._last_reason = self._clock() + _PAUSE_S, reason
        LOGGER.warning("An actor is not used: %s", reason)
        # The first actor shows whether the settings and the nodes will do; later ones may meet one bad node.
        if self.identity is None:
            raise ClusterUnavailable(
                f"No actor can be started: {reason}",
                "Every node needs ocrsvc and its engine: see docs/batch_clusters.md.",
            )

    def _check_any(self, now: float) -> None:
        """Report why actors are missing; raises ClusterUnavailable when there has been none for too long."""
        if not self.actors and now - self._none_since_s > self._request.wait_s:
            raise ClusterUnavailable(
                f"No actor was ready for {self._request.wait_s:g} s. {self._lack()}",
                "Give actors less, or the cluster more; then the same command goes on.",
            )
        is_short = not self.actors or any(not one.is_placed for one in self._starting)
        if is_short and now - self._reported_s > _REPORT_S:
            self._reported_s = now
            LOGGER.warning("%d actors read, and %d wait. %s", len(self.actors), len(self._starting), self._lack())

    def _lack(self) -> str:
        """What is being started, or else what an actor needs, and what there is."""
        if placed := sum(one.is_placed for one in self._starting):
            return f"{placed} have a place, and load their engines."
        needs, nodes = needs_of(self._request), self._nodes()
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        found = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name} free" for name in needs)
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
        fits = any(room_in(self._request, node) for node in nodes)
        text = f"Each needs {wanted}; the cluster has {found} on {len(nodes)} nodes."
        return f"{text} {'' if fits else 'No node is large enough. '}{self._last_reason}".rstrip()

    def _kill(self, actor: Actor) -> None:
        # It may have ended already, or the whole cluster.
        with suppress(Exception):
            self._ray.kill(actor.handle)


def needs_of(request: ClusterRequest) -> dict[str, float]:
    """What each actor takes of its node, by Ray's names of resources; memory in bytes."""
    own = {"CPU": request.cpus, "GPU": request.gpus, "memory": float(request.options.get("memory", 0))}
    return {name: amount for name, amount in (own | dict(request.options.get("resources", {}))).items() if amount}


def room_in(request: ClusterRequest, free: Mapping[str, float]) -> int:
    """How many actors fit into what is free."""
    # Ray counts in ten-thousandths; a hundredth GPU must not be lost to rounding.
    return min((int(free.get(name, 0) / amount + 1e-6) for name, amount in needs_of(request).items()), default=1)


def first_line(error: BaseException) -> str:
    """What Ray says of an error, in one line; its own errors go on for many."""
    return " ".join(str(error).split())[:600] or type(error).__name__
