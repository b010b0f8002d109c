"""Reads pages by actors of a Ray cluster: the command starts them, hands out pages, and alone writes the output."""

import logging
import math
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ocrsvc import __version__
from ocrsvc.batch.page_queue import GroupAdmission
from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of
from ocrsvc.batch.readers.local_reader import OWN_SETTINGS, PAGE_LIMIT_S, LocalReader
from ocrsvc.batch.request import RAY_ADDRESS, BatchRequest, ClusterRequest
from ocrsvc.errors import BadOption, ClusterUnavailable, ImageCrashesEngine, OcrsvcError, OperatorError, RunChanged
from ocrsvc.http.options import read_options
from ocrsvc.results import ReadOptions
from ocrsvc.settings.describe import is_secret, without_passwords
from ocrsvc.settings.load import RawValue, check_settings, gather
from ocrsvc.system.thread_plan import set_library_environment

LOGGER: Final = logging.getLogger("ocrsvc.batch")
MOST_SENT_BYTES: Final = 128 * 1024 * 1024
"""Files that nodes lack, in Ray's object store at a time; a larger one goes alone."""
DEATHS_TOGETHER: Final = 2
"""Actors that may end while they read a group, among others; then its pages are read one by one, alone."""
DEATHS_ALONE: Final = 3
"""Actors that may end while they read a page and nothing else; then the page has failed."""
_UPDATE_S: Final = 1.0
_PAUSE_S: Final = 30.0
"""Before another actor is started, after one could not be used."""
_SPARE_S: Final = 120.0
_STOP_S: Final = 5.0
_ENVIRONMENT: Final = {
    # Ray reports its use to its makers by default.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A line on every worker for each that has no GPU.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}


class ActorArguments(NamedTuple):
    """How an actor reads: settings without secrets, options, the loader of files, and the command's folder."""

    given: Mapping[str, RawValue]
    options: ReadOptions
    load: Load
    page_limit_s: float
    folder: str


class ActorStarted(NamedTuple):
    """The answer of an actor that is ready; `at_once` is the number of groups that it reads at once."""

    identity: Mapping[str, str]
    ocrsvc: str
    at_once: int
    host: str


class PageActor:
    """Its methods run in several threads of Ray."""

    def __init__(self, arguments: ActorArguments) -> None:
        self._arguments = arguments
        self._host = f"{socket.gethostname()}/{os.getpid()}"

    def start(self) -> ActorStarted:
        """Open the engine. Raises OcrsvcError, which Ray carries to the command."""
        arguments = self._arguments
        with suppress(OSError):
            os.chdir(arguments.folder)
        secrets = {name: value for name, value in gather(os.environ).items() if is_secret(name)}
        settings = check_settings(secrets | dict(arguments.given))
        self._reader = reader = LocalReader(settings, arguments.options, arguments.load, arguments.page_limit_s)
        return ActorStarted(reader.start(), __version__, reader.at_once, self._host)

    def read(self, group: PageGroup, data: bytes | None) -> tuple[PageResult, ...] | None:
        """A group's results, of a file that is loaded or given as `data`; None if this node cannot load it."""
        try:
            data = self._arguments.load(group.file) if data is None else data
        except OperatorError:
            return None
        except OcrsvcError as error:
            return tuple(failure_of(group, number, error, worker=self._host) for number in group.pages)
        return tuple(replace(result, worker=self._host) for result in self._reader.read(group, data))


@dataclass(slots=True, eq=False)
class Actor:
    """An actor that is ready: Ray's handle, its answer, the number of groups it reads, and whether it lacks files."""

    handle: Any
    started: ActorStarted
    reading: int = 0
    lacks_files: bool = False


class RayReader:
    """As many actors as the command asks for, or as the cluster has room for; see PageReader."""

    is_elsewhere = True

    def __init__(
        self, on: str, request: ClusterRequest, arguments: ActorArguments, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on, self._request, self._arguments, self._clock = on, request, arguments, clock
        self.ray: Any = None
        self.actors: list[Actor] = []
        self._identity: Mapping[str, str] = {}
        # Handles by the references to their answers.
        self._starting: dict[Any, Any] = {}
        self._start_after_s = 0.0
        self._without_actor_since_s = clock()
        self._changed = threading.Condition()
        self._waiting_alone = 0
        self._failure: BaseException | None = None
        self._sending = GroupAdmission(MOST_SENT_BYTES, lambda: sys.maxsize)
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="ray-actors", daemon=True)

    def start(self) -> Mapping[str, str]:
        """Returns when the first actor is ready."""
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
        """As PageReader.read; pages of actors that end are read again, and after two ends each of them alone."""
        for _ in range(DEATHS_TOGETHER):
            if results := self._read(group):
                return iter(results)
        return (self._read_alone(group.only([number])) for number in group.pages)

    def close(self) -> None:
        """Ray ends the actors of a command that leaves the cluster."""
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
        """By an actor that loads the file, or gets it if its node lacks it; () if the actor has ended."""
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
        """As PageActor.read; () if the actor has ended or does not answer in time."""
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
        """Wait for an actor with room for a group; if `alone`, for one that reads nothing else meanwhile.

        No other group begins while one waits to be read alone. Raises the error that has ended reading.
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
        """Start missing actors, and take those that are ready. Raises RunChanged and ClusterUnavailable."""
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
        return self.ray.remote(PageActor).options(**_actor_options(self._request)).remote(self._arguments)

    def _missing(self) -> int:
        count = len(self.actors) + len(self._starting)
        if self._request.actors is not None:
            return max(0, self._request.actors - count)
        if self._starting:
            return 0
        # Ray's figure for free resources lags behind.
        most = sum(room_in(self._request, node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        room = min(room_in(self._request, self.ray.available_resources()), most - count)
        return max(room, 0 if count else 1)

    def _admit(self, handle: Any, answer: Any) -> None:
        """Use an actor unless its start has failed, or it would read with another version, engine or model."""
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
        """End an actor. Raises the error if it is the first one: then settings or nodes are wrong."""
        self._kill(handle)
        self._start_after_s = self._clock() + _PAUSE_S
        if not self._identity:
            raise error
        LOGGER.warning("An actor is not used: %s", error.detail)

    def _kill(self, handle: Any) -> None:
        # It may have ended already, or the whole cluster.
        with suppress(Exception):
            self.ray.kill(handle)


def needs_of(request: ClusterRequest) -> dict[str, float]:
    """The resources of an actor, by Ray's names; memory in bytes."""
    own = {"CPU": request.cpus, "GPU": request.gpus, "memory": float(request.options.get("memory", 0))}
    return {name: amount for name, amount in (own | dict(request.options.get("resources", {}))).items() if amount}


def room_in(request: ClusterRequest, free: Mapping[str, float]) -> int:
    """The number of actors that fit into free resources."""
    # Ray counts in ten-thousandths; a hundredth GPU must not be lost to rounding.
    return min((int(free.get(name, 0) / amount + 1e-6) for name, amount in needs_of(request).items()), default=1)


def first_line(error: BaseException) -> str:
    """Ray's text of an error in one line; its own errors go on for many."""
    return " ".join(str(error).split())[:600] or type(error).__name__


def open_ray(request: BatchRequest, load: Load) -> RayReader:
    """The reader, not connected. Raises as `open_reader`."""
    given = settings_to_send(request.environment, request.cluster)
    limit_s = check_settings(given).deadline_s if "OCRSVC_DEADLINE_S" in request.environment else PAGE_LIMIT_S
    arguments = ActorArguments(given, read_options(request.options.items()).read, load, limit_s, str(Path.cwd()))
    return RayReader(request.on, request.cluster, arguments)


def settings_to_send(environment: Mapping[str, str], cluster: ClusterRequest) -> dict[str, RawValue]:
    """Settings, also of OCRSVC_CONFIG's file, without secrets and passwords, which Ray stores. Raises SettingsError."""
    threads = {} if cluster.gpus else {"OCRSVC_ENGINE_THREADS": str(max(1, round(cluster.cpus)))}
    given = gather({"OCRSVC_ISOLATION": "process"} | threads | dict(environment) | OWN_SETTINGS)
    check_settings(given)
    texts = {name: str(value.value) for name, value in given.items() if not is_secret(name)}
    return {name: given[name] for name, text in texts.items() if without_passwords(text) == text}


def _actor_options(request: ClusterRequest) -> dict[str, Any]:
    own = {
        "num_cpus": request.cpus,
        "num_gpus": request.gpus,
        # So each death is seen and counted, and another actor may start wherever there is room.
        "max_restarts": 0,
        "max_task_retries": 0,
        # More than engine threads, of which those of a GPU are few: Ray makes a thread for each.
        "max_concurrency": max(16, math.ceil(request.cpus) + 4),
        "scheduling_strategy": "SPREAD",
    }
    runtime = dict(request.options.get("runtime_env", {}))
    # Ray would give the numeric libraries as many threads as the actor has CPUs, which the engine threads fill.
    variables: dict[str, str] = {}
    set_library_environment(variables)
    runtime["env_vars"] = variables | runtime.get("env_vars", {})
    return own | dict(request.options) | {"runtime_env": runtime}


def connect(on: str) -> Any:
    """The module `ray`, connected. Raises BadOption and ClusterUnavailable."""
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
    """Raises ConnectionError where nothing listens at the cluster's address: Ray itself would try for minutes."""
    # Ray does not remove what it notes about this machine's cluster when that is killed.
    noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
    own = os.environ.get("RAY_ADDRESS") or (noted.read_text("utf-8").strip() if noted.exists() else "")
    host, _, port = (on.removeprefix(RAY_ADDRESS) if on.startswith(RAY_ADDRESS) else own).rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error.strerror or error}).") from error
