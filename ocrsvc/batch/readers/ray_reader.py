"""Reads pages with actors of a Ray cluster; the command starts them, assigns pages, and alone writes the output."""

import logging
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ocrsvc import __version__
from ocrsvc.batch.page_queue import GroupAdmission
from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of
from ocrsvc.batch.readers.local_reader import PAGE_LIMIT_S
from ocrsvc.batch.readers.ray_actor import (
    ActorArguments,
    ActorStarted,
    PageActor,
    actor_options,
    needs_of,
    room_in,
    settings_to_send,
)
from ocrsvc.batch.request import RAY_ADDRESS, BatchRequest, ClusterRequest
from ocrsvc.errors import BadOption, ClusterUnavailable, ImageCrashesEngine, OcrsvcError, RunChanged
from ocrsvc.http.options import read_options
from ocrsvc.settings.load import check_settings

LOGGER: Final = logging.getLogger("ocrsvc.batch")
MAX_SENT_BYTES: Final = 128 * 1024 * 1024
"""Limit of file bytes in Ray's object store, for nodes that cannot load the files; a larger file is sent alone."""
DEATHS_TOGETHER: Final = 2
"""After this many actors ended while reading a group, its pages are read one by one, by otherwise idle actors."""
DEATHS_ALONE: Final = 3
"""After this many actors ended while reading only one page, the page counts as failed."""
_UPDATE_S: Final = 1.0
_PAUSE_S: Final = 30.0
"""Pause before another actor is started, after one could not be used."""
_SPARE_S: Final = 120.0
_STOP_S: Final = 5.0
_ENVIRONMENT: Final = {
    # Ray sends usage statistics to its makers by default.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without this, Ray prints a warning for each actor without a GPU.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}


@dataclass(slots=True, eq=False)
class Actor:
    """A ready actor: its handle, its answer to `start`, how many groups it reads, whether its node lacks the files."""

    handle: Any
    started: ActorStarted
    reading: int = 0
    lacks_files: bool = False


class RayReader:
    """A PageReader that reads with the requested number of actors, or with all that fit on the cluster."""

    is_elsewhere = True

    def __init__(
        self, on: str, request: ClusterRequest, arguments: ActorArguments, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on, self._request, self._arguments, self._clock = on, request, arguments, clock
        self.ray: Any = None
        self.actors: list[Actor] = []
        self._identity: Mapping[str, str] = {}
        # Handles of actors that are starting, by Ray's reference to the result of `start`.
        self._starting: dict[Any, Any] = {}
        self._start_after_s = 0.0
        self._without_actor_since_s = clock()
        self._changed = threading.Condition()
        self._waiting_alone = 0
        self._failure: BaseException | None = None
        self._sending = GroupAdmission(MAX_SENT_BYTES, lambda: sys.maxsize)
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="ray-actors", daemon=True)

    def start(self) -> Mapping[str, str]:
        """Connect to the cluster, wait until the first actor is ready, and return its engine and model."""
        self.ray = connect(self._on)
        self._watcher.start()
        with self._changed:
            self._changed.wait_for(lambda: self._identity or self._failure)
        if self._failure is not None:
            raise self._failure
        return self._identity

    @property
    def at_once(self) -> int:
        return max(1, sum(actor.started.at_once for actor in list(self.actors)))

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """As PageReader.read. If an actor dies, its group is read again; after two deaths, each page is read alone."""
        for _ in range(DEATHS_TOGETHER):
            if results := self._read(group):
                return iter(results)
        return (self._read_alone(group.only([number])) for number in group.pages)

    def close(self) -> None:
        """Leave the cluster; Ray then ends the command's actors."""
        self._closed.set()
        self._fail(ClusterUnavailable("The run has ended.", "Give the same command again to continue."))
        if self.ray is not None:
            self._watcher.join(_STOP_S)
            self.ray.shutdown()

    def _read_alone(self, page: PageGroup) -> PageResult:
        for _ in range(DEATHS_ALONE):
            if results := self._read(page, alone=True):
                return results[0]
        what = f"{DEATHS_ALONE} actors ended while they read this page and nothing else."
        return failure_of(page, page.pages[0], ImageCrashesEngine(what, "Give actors more memory, or convert it."))

    def _read(self, group: PageGroup, *, alone: bool = False) -> tuple[PageResult, ...]:
        """Have an actor read a group; if its node cannot load the file, send it along. Returns () if the actor died."""
        with self._taken(alone=alone) as actor:
            results = None if actor.lacks_files else self._ask(actor, group, None)
            if results is not None:
                return results
            actor.lacks_files = True
            with self._sending.entered(group.file.size):
                try:
                    data = self.ray.put(self._arguments.load(group.file))
                except OcrsvcError as error:
                    return tuple(failure_of(group, number, error) for number in group.pages)
                return self._ask(actor, group, data) or ()

    def _ask(self, actor: Actor, group: PageGroup, data: Any) -> tuple[PageResult, ...] | None:
        """Call PageActor.read; returns () if the actor dies or is late, None if its node cannot load the file."""
        from ray.exceptions import RayError, RayTaskError

        limit_s = self._arguments.page_limit_s * len(group.pages) + _SPARE_S
        try:
            return self.ray.get(actor.handle.read.remote(group, data), timeout=limit_s)  # type: ignore[no-any-return]
        except RayTaskError:
            raise
        except RayError as error:
            self._remove(actor, first_line(error))
            return ()

    @contextmanager
    def _taken(self, *, alone: bool) -> Iterator[Actor]:
        """Wait for an actor with room for a group, and reserve the room; if `alone`, for an idle one and all its room.

        No other group begins while a group waits to be read alone. If the reader has failed, raises the cause.
        """
        with self._changed:
            self._waiting_alone += alone
            while (actor := self._free(alone=alone)) is None:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            places = actor.started.at_once if alone else 1
            actor.reading += places
            if alone:
                self._waiting_alone -= 1
                self._changed.notify_all()
        try:
            yield actor
        finally:
            with self._changed:
                actor.reading -= places
                self._changed.notify_all()

    def _free(self, *, alone: bool) -> Actor | None:
        actor = min(self.actors, key=lambda each: each.reading / each.started.at_once, default=None)
        if actor is None or (self._waiting_alone and not alone):
            return None
        return actor if actor.reading < (1 if alone else actor.started.at_once) else None

    def _remove(self, actor: Actor, reason: str) -> None:
        with self._changed:
            if actor not in self.actors:
                return
            self.actors.remove(actor)
            self._without_actor_since_s = self._clock()
        LOGGER.warning("Actor %s has ended; its groups are read again. %s", actor.started.host, reason)
        self._kill(actor.handle)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _watch(self) -> None:
        try:
            while not self._closed.wait(_UPDATE_S if self.actors else _UPDATE_S / 5):
                self.update()
        except BaseException as error:  # noqa: BLE001  raised by the threads that read
            self._fail(error)

    def update(self) -> None:
        """Start missing actors, and use those that have become ready. Raises RunChanged and ClusterUnavailable."""
        now_s = self._clock()
        for _ in range(self._missing() if now_s >= self._start_after_s else 0):
            handle = self._make()
            self._starting[handle.start.remote()] = handle
        starting = list(self._starting)
        for answer in self.ray.wait(starting, num_returns=len(starting), timeout=0)[0] if starting else ():
            self._admit(self._starting.pop(answer), answer)
        if not self.actors and now_s - self._without_actor_since_s > self._request.wait_s:
            needs, free, total = needs_of(self._request), self.ray.available_resources(), self.ray.cluster_resources()
            needed = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
            shown = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name} free" for name in needs)
            raise ClusterUnavailable(
                f"No actor was ready for {self._request.wait_s:g} s. Each needs {needed}; the cluster has {shown}.",
                "Give actors less, or the cluster or one of its nodes more; then the same command goes on.",
            )

    def _make(self) -> Any:
        return self.ray.remote(PageActor).options(**actor_options(self._request)).remote(self._arguments)

    def _missing(self) -> int:
        count = len(self.actors) + len(self._starting)
        if self._request.actors is not None:
            return max(0, self._request.actors - count)
        if self._starting:
            return 0
        # Limit actors by the nodes' total resources, too: Ray reports resources of new actors as free for a while.
        most = sum(room_in(self._request, node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        room = min(room_in(self._request, self.ray.available_resources()), most - count)
        return max(room, 0 if count else 1)

    def _admit(self, handle: Any, answer: Any) -> None:
        """Use an actor, unless its start failed or its ocrsvc version, engine or model differs from the run's."""
        try:
            started: ActorStarted = self.ray.get(answer)
        except Exception as error:  # noqa: BLE001  anything may keep it from starting; it is reported
            reason = f"No actor can be started: {first_line(getattr(error, 'cause', None) or error)}"
            remedy = "Every node needs ocrsvc and its engine: see docs/batch_clusters.md."
            self._refuse(handle, ClusterUnavailable(reason, remedy))
            return
        if started.ocrsvc != __version__ or (self._identity and started.identity != self._identity):
            own = " ".join((*self._identity.values(), "ocrsvc", __version__))
            other = f"{' '.join(started.identity.values())} ocrsvc {started.ocrsvc}"
            reason = f"Actor {started.host} reads with {other}, and this run with {own}."
            self._refuse(handle, RunChanged(reason, "Install the same version on every node."))
            return
        with self._changed:
            self._identity = started.identity
            self.actors.append(Actor(handle, started))
            self._changed.notify_all()

    def _refuse(self, handle: Any, error: OcrsvcError) -> None:
        """End an unusable actor. Raises `error` if no actor was ready before: the settings or nodes are wrong."""
        self._kill(handle)
        self._start_after_s = self._clock() + _PAUSE_S
        if not self._identity:
            raise error
        LOGGER.warning("An actor is not used: %s", error.detail)

    def _kill(self, handle: Any) -> None:
        # The actor or the whole cluster may have ended already.
        with suppress(Exception):
            self.ray.kill(handle)


def first_line(error: BaseException) -> str:
    """An error's text joined to one line of at most 600 characters; Ray's errors have many lines."""
    return " ".join(str(error).split())[:600] or type(error).__name__


def open_ray(request: BatchRequest, load: Load) -> RayReader:
    """Make the reader; its `start` connects. Raises as `open_reader`."""
    given = settings_to_send(request.environment, request.cluster)
    limit_s = check_settings(given).deadline_s if "OCRSVC_DEADLINE_S" in request.environment else PAGE_LIMIT_S
    arguments = ActorArguments(given, read_options(request.options.items()).read, load, limit_s, str(Path.cwd()))
    return RayReader(request.on, request.cluster, arguments)


def connect(on: str) -> Any:
    """Connect to the cluster; returns the module `ray`. Raises BadOption and ClusterUnavailable."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise BadOption("--on ray needs Ray, which is not installed.", "pip install '.[ray]'") from error
    address = on if on.startswith(RAY_ADDRESS) else "auto"
    try:
        check_listens(on)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, namespace="ocrsvc", log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, ImportError, OSError) as error:
        raise ClusterUnavailable(
            f"The Ray cluster of --on {on} cannot be used: {first_line(error)}",
            "Start one (`ray start --head`), or name it: --on ray://HOST:10001, or RAY_ADDRESS=HOST:6379.",
        ) from error
    return ray


def check_listens(on: str) -> None:
    """Raises ConnectionError if nothing listens at the cluster's address; Ray itself would retry for minutes."""
    # Ray writes the local cluster's address to this file, and leaves it there if the cluster is killed.
    noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
    own = os.environ.get("RAY_ADDRESS") or (noted.read_text("utf-8").strip() if noted.exists() else "")
    host, _, port = (on.removeprefix(RAY_ADDRESS) if on.startswith(RAY_ADDRESS) else own).rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error.strerror or error}).") from error
