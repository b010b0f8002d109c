"""The Ray actor that reads pages on a node of a cluster, with the settings and resources that it gets."""

import math
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ocrsvc import __version__
from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of
from ocrsvc.batch.readers.local_reader import OWN_SETTINGS, LocalReader
from ocrsvc.batch.request import ClusterRequest
from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.results import ReadOptions
from ocrsvc.settings.describe import is_secret, without_passwords
from ocrsvc.settings.load import RawValue, check_settings, gather
from ocrsvc.system.thread_plan import set_library_environment


class ActorArguments(NamedTuple):
    """What an actor needs: settings without secrets, page options, the file loader, and the working folder."""

    given: Mapping[str, RawValue]
    options: ReadOptions
    load: Load
    page_limit_s: float
    folder: str


class ActorStarted(NamedTuple):
    """An actor's answer when it is ready; `at_once` is the number of groups that it can read at once."""

    identity: Mapping[str, str]
    ocrsvc: str
    at_once: int
    host: str


class PageActor:
    """The Ray actor that reads pages; Ray calls its methods in several threads."""

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
        """Read a group from its file, or from `data`; returns None if this node cannot load the file."""
        try:
            data = self._arguments.load(group.file) if data is None else data
        except OperatorError:
            return None
        except OcrsvcError as error:
            return tuple(failure_of(group, number, error, worker=self._host) for number in group.pages)
        return tuple(replace(result, worker=self._host) for result in self._reader.read(group, data))


def settings_to_send(environment: Mapping[str, str], cluster: ClusterRequest) -> dict[str, RawValue]:
    """Settings for actors, also from OCRSVC_CONFIG; without secrets, because Ray stores them. Raises SettingsError."""
    threads = {} if cluster.gpus else {"OCRSVC_ENGINE_THREADS": str(max(1, round(cluster.cpus)))}
    given = gather({"OCRSVC_ISOLATION": "process"} | threads | dict(environment) | OWN_SETTINGS)
    check_settings(given)
    texts = {name: str(value.value) for name, value in given.items() if not is_secret(name)}
    return {name: given[name] for name, text in texts.items() if without_passwords(text) == text}


def actor_options(request: ClusterRequest) -> dict[str, Any]:
    """Ray's options for an actor: its resources, environment, and threads."""
    own = {
        "num_cpus": request.cpus,
        "num_gpus": request.gpus,
        # Without restarts by Ray, every death is counted, and a new actor can start on any node.
        "max_restarts": 0,
        "max_task_retries": 0,
        # Ray makes a thread per concurrent call: allow more calls than engine threads, which are few with a GPU.
        "max_concurrency": max(16, math.ceil(request.cpus) + 4),
        "scheduling_strategy": "SPREAD",
    }
    runtime = dict(request.options.get("runtime_env", {}))
    # Limit the threads of numeric libraries: Ray's default is one per CPU, but engine threads already use all CPUs.
    variables: dict[str, str] = {}
    set_library_environment(variables)
    runtime["env_vars"] = variables | runtime.get("env_vars", {})
    return own | dict(request.options) | {"runtime_env": runtime}


def needs_of(request: ClusterRequest) -> dict[str, float]:
    """The resources that an actor needs, by Ray's names; memory in bytes."""
    own = {"CPU": request.cpus, "GPU": request.gpus, "memory": float(request.options.get("memory", 0))}
    return {name: amount for name, amount in (own | dict(request.options.get("resources", {}))).items() if amount}


def room_in(request: ClusterRequest, free: Mapping[str, float]) -> int:
    """The number of actors that fit into these free resources."""
    # Ray's amounts have four decimals; 1e-6 keeps floating-point errors from losing an actor.
    return min((int(free.get(name, 0) / amount + 1e-6) for name, amount in needs_of(request).items()), default=1)
