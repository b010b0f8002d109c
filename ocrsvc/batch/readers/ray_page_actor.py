"""What runs on a node of a Ray cluster: an engine with its threads, and what it answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ocrsvc import __version__
from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile, failure_of
from ocrsvc.batch.readers.local_reader import LocalReader
from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.records import ReadOptions
from ocrsvc.settings.describe import is_secret
from ocrsvc.settings.load import RawValue, check_settings, gather


@dataclass(frozen=True, slots=True)
class ActorArguments:
    """What an actor is made of: settings without secrets, options, what loads files, and the command's folder."""

    given: Mapping[str, RawValue]
    options: ReadOptions
    load: Callable[[SourceFile], bytes]
    page_limit_s: float
    folder: str


@dataclass(frozen=True, slots=True)
class ActorStarted:
    """An actor is ready."""

    identity: Mapping[str, str]
    ocrsvc: str
    computes_on: str
    at_once: int
    node: str
    host: str


class PageActor:
    """One engine with its threads; its methods run in several threads of Ray."""

    def __init__(self, arguments: ActorArguments) -> None:
        self._arguments = arguments
        self._file = threading.local()
        self._host = f"{socket.gethostname()}/{os.getpid()}"
        self._reader: LocalReader | None = None

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

        None where that fails: not there, not allowed, or without what its kind of address needs: another machine may
        have it.
        """
        assert self._reader is not None, "it was started"
        try:
            self._file.data = self._arguments.load(group.file) if data is None else data
        except OperatorError:
            return None
        except OcrsvcError as error:
            return tuple(failure_of(group, number, error, worker=self._host) for number in group.pages)
        results = tuple(replace(result, worker=self._host) for result in self._reader.read(group))
        self._file.data = b""
        return results
