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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile, failure_of
from ocrsvc.batch.readers.open_reader import RAY_ADDRESS, ClusterRequest
from ocrsvc.batch.readers.ray_actors import Actor, ActorPool, first_line
from ocrsvc.batch.readers.ray_page_actor import FileMissing, PageActor
from ocrsvc.batch.readers.service_reader import GroupAdmission
from ocrsvc.errors import BadOption, ClusterUnavailable, ImageCrashesEngine, OcrsvcError
from ocrsvc.records import ReadOptions
from ocrsvc.settings.describe import is_secret, without_passwords
from ocrsvc.settings.load import RawValue, check_settings, gather
from ocrsvc.system.thread_plan import set_library_environment

MOST_SENT_BYTES: Final = 128 * 1024 * 1024
"""Of files that nodes lack, in the object store at a time; a larger one goes alone."""
DEATHS_TOGETHER: Final = 2
"""Actors that may end while they read a group, among others; then its pages are read one by one, alone."""
DEATHS_ALONE: Final = 3
"""Actors that may end while they read a page and nothing else; then the page has failed."""
_SPARE_CALLS: Final = 4
_GPU_CALLS: Final = 16
_ADAPT_S: Final = 1.0
_SPARE_S: Final = 120.0
_STOP_S: Final = 5.0
_ENVIRONMENT: Final = {
    # Ray reports its use to its makers unless it is told not to.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A line on every worker for each that has no GPU.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}
_CONNECT_S: Final = 10.0
_FAILURES: Final = (ConnectionError, TimeoutError, RuntimeError, ValueError, ImportError, OSError)


class RayReader:
    """Actors that hold an engine each; see PageReader. `given` are settings without secrets."""

    def __init__(
        self,
        on: str,
        request: ClusterRequest,
        given: Mapping[str, RawValue],
        options: ReadOptions,
        load: Callable[[SourceFile], bytes],
        page_limit_s: float,
    ) -> None:
        self._on, self._request = on, request
        self._actor = (given, options, load, page_limit_s, str(Path.cwd()))
        self._load, self._page_limit_s = load, page_limit_s
        self._ray: Any = None
        self._pool: Any = None
        self._lacking: set[str] = set()
        self._sending = GroupAdmission(MOST_SENT_BYTES, lambda: sys.maxsize)
        self._closed = threading.Event()
        self._adapting = threading.Thread(target=self._adapt, name="ray-actors", daemon=True)

    def start(self) -> Mapping[str, str]:
        """As PageReader.start: returns when the first actor is ready."""
        self._ray = connect(self._on)
        remote = self._ray.remote(PageActor).options(**self._actor_options())
        self._pool = ActorPool(self._ray, self._request, lambda: remote.remote(*self._actor))
        self._adapting.start()
        identity: Mapping[str, str] = self._pool.wait_for_first()
        return identity

    @property
    def at_once(self) -> int:
        """As PageReader.at_once: what the actors that are ready read at once."""
        return int(self._pool.at_once)

    @property
    def is_elsewhere(self) -> bool:
        """As PageReader.is_elsewhere."""
        return True

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """As PageReader.read.

        An actor that ends costs its pages nothing but time, unless actors end again and again with the same one.
        """
        for _ in range(DEATHS_TOGETHER):
            if (results := self._read(group)) is not None:
                yield from results
                return
        for number, index in zip(group.pages, group.indexes, strict=True):
            yield from self._read_alone(PageGroup(group.file, (number,), (index,)))

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
        """The thread that looks after the actors."""
        try:
            while not self._closed.wait(_ADAPT_S if self._pool.actors else _ADAPT_S / 5):
                self._pool.adapt()
        except BaseException as error:  # noqa: BLE001  raised by the threads that read
            self._pool.fail(error)

    def _read_alone(self, page: PageGroup) -> tuple[PageResult, ...]:
        for _ in range(DEATHS_ALONE):
            if (results := self._read(page, alone=True)) is not None:
                return results
        error = ImageCrashesEngine(
            f"{DEATHS_ALONE} actors ended while they read this page and nothing else.",
            "Give actors more memory, or read it with OCRSVC_ISOLATION=process.",
        )
        return (failure_of(page, page.pages[0], error),)

    def _read(self, group: PageGroup, *, alone: bool = False) -> tuple[PageResult, ...] | None:
        """By an actor that loads the file, or is sent it where its node has none; None where the actor has ended."""
        with self._pool.taken(alone=alone) as actor:
            answer = None if actor.node in self._lacking else self._ask(actor, group, None)
            if actor.node not in self._lacking and not isinstance(answer, FileMissing):
                return answer
            with self._sending.entered(group.file.size):
                try:
                    data = self._ray.put(self._load(group.file))
                except OcrsvcError as error:
                    return tuple(failure_of(group, number, error) for number in group.pages)
                # From now on its files are sent at once.
                self._lacking.add(actor.node)
                answer = self._ask(actor, group, data)
            assert not isinstance(answer, FileMissing), "it was sent"
            return answer

    def _ask(self, actor: Actor, group: PageGroup, data: Any) -> tuple[PageResult, ...] | FileMissing | None:
        """What an actor answers; None where it has ended, or nothing tells that it lives."""
        from ray.exceptions import RayError, RayTaskError

        try:
            reference = actor.handle.read.remote(group, data)
            limit_s = self._page_limit_s * len(group.pages) + _SPARE_S
            answer: tuple[PageResult, ...] | FileMissing = self._ray.get(reference, timeout=limit_s)
        except RayTaskError:
            raise
        except RayError as error:
            self._pool.remove(actor, first_line(error))
            return None
        return answer

    def _actor_options(self) -> dict[str, Any]:
        """Ray's options of an actor: what the command says, and what the engine needs."""
        own = {
            "num_cpus": self._request.cpus,
            "num_gpus": self._request.gpus,
            # An actor that has ended is not begun again by Ray: the pool starts another, wherever there is room.
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": max(_GPU_CALLS, math.ceil(self._request.cpus) + _SPARE_CALLS),
            "scheduling_strategy": "SPREAD",
        }
        given = dict(self._request.options)
        runtime = dict(given.pop("runtime_env", {}))
        # Ray would give the numeric libraries as many threads as the actor has CPUs, which the engine threads fill.
        variables: dict[str, str] = {}
        set_library_environment(variables)
        runtime["env_vars"] = variables | dict(runtime.get("env_vars", {}))
        return own | given | {"runtime_env": runtime}


def settings_to_send(environment: Mapping[str, str], cluster: ClusterRequest) -> dict[str, RawValue]:
    """Settings by name, read here, so that no node needs the file that OCRSVC_CONFIG names.

    Secrets, and addresses with passwords, stay: Ray keeps what actors are begun with. Nodes have their own.

    Raises SettingsError.
    """
    own = {"OCRSVC_ISOLATION": "process"}
    if not cluster.gpus:
        own["OCRSVC_ENGINE_THREADS"] = str(max(1, round(cluster.cpus)))
    given = gather(own | dict(environment) | {"OCRSVC_MAX_PAGES": "100000"})
    check_settings(given)
    return {name: value for name, value in given.items() if not is_secret(name) and not _has_password(value)}


def _has_password(value: RawValue) -> bool:
    return without_passwords(str(value.value)) != str(value.value)


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
        check_listens(own_address() if address == "auto" else address)
        with warnings.catch_warnings(action="ignore"):
            ray.init(address, namespace="ocrsvc", log_to_driver=False, logging_level=logging.ERROR)
    except _FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ClusterUnavailable(
            f"{_named(on)} cannot be used: {' '.join(line.strip() for line in lines)[:600]}",
            "Start one (`ray start --head`), or name it: --on ray://HOST:10001, or RAY_ADDRESS=HOST:6379.",
        ) from error
    # Ray prints the last lines of the logs of a node that died, whatever was asked above.
    if (worker := sys.modules.get("ray._private.worker")) is not None:
        vars(worker)["_worker_logs_enabled"] = False
    return ray


def own_address() -> str:
    """Where Ray looks for the cluster of this machine; "" where it finds out by itself.

    Its file is not removed when a cluster is killed.
    """
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    noted = Path(folder, "ray", "ray_current_cluster")
    return os.environ.get("RAY_ADDRESS") or (noted.read_text("utf-8").strip() if noted.exists() else "")


def check_listens(address: str) -> None:
    """Raises ConnectionError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix(RAY_ADDRESS).rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error.strerror or error}).") from error


def _named(on: str) -> str:
    return f"The Ray cluster at {on}" if on != "ray" else "The Ray cluster of this machine"
