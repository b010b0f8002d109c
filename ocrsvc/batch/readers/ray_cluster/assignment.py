"""Decides which actor reads which group, and what is done with the groups of an actor that has ended; no Ray in it."""

from __future__ import annotations

import queue
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from ocrsvc.batch.readers.ray_cluster.actor_messages import FileMissing
from ocrsvc.batch.tasks import PageGroup, PageResult

DEATHS_TOGETHER: Final = 2
"""Actors that may end while they read a group, among others; then its pages are read one by one, alone."""

DEATHS_ALONE: Final = 3
"""Actors that may end while they read a page and nothing else; then the page has failed."""


@dataclass(frozen=True, slots=True)
class ActorsEnded:
    """So many actors ended while they read the group."""

    deaths: int


Answer = tuple[PageResult, ...] | FileMissing | ActorsEnded


@dataclass(slots=True, eq=False)
class Call:
    """A group that waits for an actor, or is read by one.

    Attributes:
        group: Its pages.
        data: The bytes of its file as an object of Ray; None has the actor load them.
        alone: Whether the actor is to read nothing else meanwhile.
        answer: Where its answer goes, or an error that ends the run.
        deaths: Actors that ended while they read it.
        since_s: When an actor was given it.
    """

    group: PageGroup
    data: Any = None
    alone: bool = False
    answer: queue.SimpleQueue[Answer | BaseException] = field(default_factory=queue.SimpleQueue)
    deaths: int = 0
    since_s: float = 0.0


@dataclass(slots=True, eq=False)
class Actor:
    """An actor that is ready.

    Attributes:
        handle: Ray's.
        host: For people.
        node: Ray's id of its node.
        at_once: Groups that it reads at once.
        calls: Those that it reads.
    """

    handle: Any
    host: str
    node: str
    at_once: int
    calls: set[Call] = field(default_factory=set)


class Assignment:
    """Calls that wait, and the actors that are ready; for one thread, but for `at_once`.

    Attributes:
        actors: Those that are ready.
        at_once: Groups that all of them read at once; at least 1.
    """

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.at_once = 1
        self._waiting: deque[Call] = deque()
        self._alone: deque[Call] = deque()
        # The actor that is given calls that are read alone, and no others.
        self._reserved: Actor | None = None

    def add_call(self, call: Call) -> None:
        """A call waits from now on."""
        (self._alone if call.alone else self._waiting).append(call)

    def add_actor(self, actor: Actor) -> None:
        """An actor is ready."""
        self.actors.append(actor)
        self._count()

    def remove_actor(self, actor: Actor) -> None:
        """An actor has ended: what it read is read again first, or answered if too many ended so."""
        self.actors.remove(actor)
        if actor is self._reserved:
            self._reserved = None
        self._count()
        for call in actor.calls:
            call.deaths += 1
            if call.deaths >= (DEATHS_ALONE if call.alone else DEATHS_TOGETHER):
                call.answer.put(ActorsEnded(call.deaths))
            else:
                (self._alone if call.alone else self._waiting).appendleft(call)
        actor.calls.clear()

    def next(self) -> tuple[Actor, Call] | None:
        """A call and the actor that is to read it now; the call counts as the actor's. None if nothing can be begun."""
        found = self._next_alone() or self._next_together()
        if found is not None:
            found[0].calls.add(found[1])
        return found

    def end_call(self, actor: Actor, call: Call) -> bool:
        """The actor has read the call; False where it is no longer the actor's."""
        if call not in actor.calls:
            return False
        actor.calls.remove(call)
        return True

    def _next_alone(self) -> tuple[Actor, Call] | None:
        if not self._alone:
            if self._reserved is not None and not any(call.alone for call in self._reserved.calls):
                self._reserved = None
            return None
        if self._reserved is None and self.actors:
            self._reserved = min(self.actors, key=lambda actor: len(actor.calls))
        if self._reserved is None or self._reserved.calls:
            return None
        return self._reserved, self._alone.popleft()

    def _next_together(self) -> tuple[Actor, Call] | None:
        free = [actor for actor in self.actors if len(actor.calls) < actor.at_once and actor is not self._reserved]
        if not self._waiting or not free:
            return None
        return max(free, key=lambda actor: actor.at_once - len(actor.calls)), self._waiting.popleft()

    def _count(self) -> None:
        self.at_once = max(1, sum(actor.at_once for actor in self.actors))
