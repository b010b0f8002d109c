"""Reads pages by actors of a Ray cluster: this command hands them out, and alone writes work and output."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of
from ocrsvc.batch.readers.local_reader import OWN_SETTINGS, PAGE_LIMIT_S
from ocrsvc.batch.readers.ray_actors import Actor, ActorArguments, ActorPool, PageActor, first_line
from ocrsvc.batch.readers.service_reader import GroupAdmission
from ocrsvc.batch.request import RAY_ADDRESS, BatchRequest, ClusterRequest
from ocrsvc.errors import BadOption, ClusterUnavailable, ImageCrashesEngine, OcrsvcError
from ocrsvc.http.options import read_options
from ocrsvc.settings.describe import is_secret, without_passwords
from ocrsvc.settings.load import RawValue, check_settings, gather
from ocrsvc.system.thread_plan import set_library_environment

MOST_SENT_BYTES: Final = 128 * 1024 * 1024
"""Files that nodes lack, in Ray's object store at a time; a larger one goes alone."""
DEATHS_TOGETHER: Final = 2
"""Actors that may end while they read a group, among others; then its pages are read one by one, alone."""
DEATHS_ALONE: Final = 3
"""Actors that may end while they read a page and nothing else; then the page has failed."""
_SPARE_CALLS: Final = 4
_GPU_CALLS: Final = 16
_ADAPT_S: Final = 1.0
_SPARE_S: Final = 120.0
_STOP_S: Final = 5.0
_CONNECT_S: Final = 10.0
_ENVIRONMENT: Final = {
    # Ray reports its use to its makers by default.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A line on every worker for each that has no GPU.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}


class RayReader:
    """Actors that hold an engine each; see PageReader."""

    is_elsewhere = True

    def __init__(self, on: str, request: ClusterRequest, arguments: ActorArguments) -> None:
        self._on, self._request, self._arguments = on, request, arguments
        self._ray: Any = None
        self._pool: Any = None
        # Nodes that lack files.
        self._lacking: set[str] = set()
        self._sending = GroupAdmission(MOST_SENT_BYTES, lambda: sys.maxsize)
        self._closed = threading.Event()
        self._adapting = threading.Thread(target=self._adapt, name="ray-actors", daemon=True)

    def start(self) -> Mapping[str, str]:
        """As PageReader.start: returns when the first actor is ready."""
        self._ray = connect(self._on)
        remote = self._ray.remote(PageActor).options(**_actor_options(self._request))
        self._pool = ActorPool(self._ray, self._request, lambda: remote.remote(self._arguments))
        self._adapting.start()
        identity: Mapping[str, str] = self._pool.wait_for_first()
        return identity

    @property
    def at_once(self) -> int:
        """As PageReader.at_once: what the actors that are ready read at once."""
        return int(self._pool.at_once)

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """As PageReader.read; pages of actors that end are read again, and after two ends each of them alone."""
        for _ in range(DEATHS_TOGETHER):
            if results := self._read(group):
                return iter(results)
        return (self._read_alone(group.only([number])) for number in group.pages)

    def close(self) -> None:
        """As PageReader.close."""
        self._closed.set()
        if self._pool is not None:
            self._pool.fail(ClusterUnavailable("The run has ended.", "Give the same command again to go on."))
            self._adapting.join(_STOP_S)
            self._pool.end()
        if self._ray is not None:
            self._ray.shutdown()

    def _adapt(self) -> None:
        try:
            while not self._closed.wait(_ADAPT_S if self._pool.actors else _ADAPT_S / 5):
                self._pool.adapt()
        except BaseException as error:  # noqa: BLE001  raised by the threads that read
            self._pool.fail(error)

    def _read_alone(self, page: PageGroup) -> PageResult:
        for _ in range(DEATHS_ALONE):
            if results := self._read(page, alone=True):
                return results[0]
        error = ImageCrashesEngine(
            f"{DEATHS_ALONE} actors ended while they read this page and nothing else.",
            "Give actors more memory, or read it with OCRSVC_ISOLATION=process.",
        )
        return failure_of(page, page.pages[0], error)

    def _read(self, group: PageGroup, *, alone: bool = False) -> tuple[PageResult, ...]:
        """By an actor that loads the file, or is sent it where its node lacks it; () where the actor has ended."""
        with self._pool.taken(alone=alone) as actor:
            results = None if actor.said.node in self._lacking else self._ask(actor, group, None)
            if results is not None:
                return results
            # From now on its files are sent at once.
            self._lacking.add(actor.said.node)
            with self._sending.entered(group.file.size):
                try:
                    data = self._ray.put(self._arguments.load(group.file))
                except OcrsvcError as error:
                    return tuple(failure_of(group, number, error) for number in group.pages)
                return self._ask(actor, group, data) or ()

    def _ask(self, actor: Actor, group: PageGroup, data: Any) -> tuple[PageResult, ...] | None:
        """As PageActor.read; () where the actor has ended or does not answer in time."""
        from ray.exceptions import RayError, RayTaskError

        try:
            reference = actor.handle.read.remote(group, data)
            limit_s = self._arguments.page_limit_s * len(group.pages) + _SPARE_S
            results: tuple[PageResult, ...] | None = self._ray.get(reference, timeout=limit_s)
        except RayTaskError:
            raise
        except RayError as error:
            self._pool.remove(actor, first_line(error))
            return ()
        return results


def open_ray(request: BatchRequest, load: Load) -> RayReader:
    """The reader, not connected. Raises as `open_reader`."""
    given = settings_to_send(request.environment, request.cluster)
    limit_s = check_settings(given).deadline_s if "OCRSVC_DEADLINE_S" in request.environment else PAGE_LIMIT_S
    options = read_options(request.options.items()).read
    arguments = ActorArguments(given, options, load, limit_s, str(Path.cwd()))
    return RayReader(request.on, request.cluster, arguments)


def settings_to_send(environment: Mapping[str, str], cluster: ClusterRequest) -> dict[str, RawValue]:
    """Settings by name, also those of the file that OCRSVC_CONFIG names. Raises SettingsError.

    Secrets and addresses with passwords are left out, as Ray stores them: nodes have their own.
    """
    own = {"OCRSVC_ISOLATION": "process"}
    if not cluster.gpus:
        own["OCRSVC_ENGINE_THREADS"] = str(max(1, round(cluster.cpus)))
    given = gather(own | dict(environment) | OWN_SETTINGS)
    check_settings(given)
    texts = {name: str(value.value) for name, value in given.items() if not is_secret(name)}
    return {name: given[name] for name, text in texts.items() if without_passwords(text) == text}


def _actor_options(request: ClusterRequest) -> dict[str, Any]:
    own = {
        "num_cpus": request.cpus,
        "num_gpus": request.gpus,
        # Ray begins no actor again that has ended: the pool starts another, wherever there is room.
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": max(_GPU_CALLS, math.ceil(request.cpus) + _SPARE_CALLS),
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
        raise BadOption("--on ray needs Ray, which is not installed.", "pip install 'ocrsvc[ray]'") from error
    address = on if on.startswith(RAY_ADDRESS) else "auto"
    try:
        check_listens(on)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, namespace="ocrsvc", log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, ImportError, OSError) as error:
        name = f"The Ray cluster at {on}" if on != "ray" else "The Ray cluster of this machine"
        raise ClusterUnavailable(
            f"{name} cannot be used: {first_line(error)}",
            "Start one (`ray start --head`), or name it: --on ray://HOST:10001, or RAY_ADDRESS=HOST:6379.",
        ) from error
    # Ray prints the last lines of a dead node's logs in spite of log_to_driver.
    if (worker := sys.modules.get("ray._private.worker")) is not None:
        vars(worker)["_worker_logs_enabled"] = False
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
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error.strerror or error}).") from error
