"""What runs on a node of a Ray cluster: an engine with its threads, and what it answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ocrsvc import __version__
from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile
from ocrsvc.batch.readers.local_reader import LocalReader
from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.records import ReadOptions
from ocrsvc.settings.describe import is_secret
from ocrsvc.settings.load import RawValue, check_settings, gather


@dataclass(frozen=True, slots=True)
class ActorStarted:
    """An actor is ready."""

    identity: Mapping[str, str]
    ocrsvc: str
    computes_on: str
    at_once: int
    node: str
    host: str


@dataclass(frozen=True, slots=True)
class ActorRefused:
    """An actor cannot read: `detail` and `remedy` as of OcrsvcError."""

    detail: str
    remedy: str
    host: str


@dataclass(frozen=True, slots=True)
class FileMissing:
    """The file of a group cannot be read on the actor's node (Ray's id of it)."""

    node: str


class PageActor:
    """One engine with its threads; its methods run in several threads of Ray."""

    def __init__(
        self,
        given: Mapping[str, RawValue],
        options: ReadOptions,
        load: Callable[[SourceFile], bytes],
        page_limit_s: float,
        folder: str,
    ) -> None:
        self._given, self._options, self._load = given, options, load
        self._page_limit_s, self._folder = page_limit_s, folder
        self._call = threading.local()
        self._host = f"{socket.gethostname()}/{os.getpid()}"
        self._reader: LocalReader | None = None

    def node(self) -> str:
        """Ray's id of the node that has the actor."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def start(self) -> ActorStarted | ActorRefused:
        """Open the engine."""
        with suppress(OSError):
            os.chdir(self._folder)
        try:
            secrets = {name: value for name, value in gather(os.environ).items() if is_secret(name)}
            settings = check_settings(secrets | dict(self._given))
            self._reader = LocalReader(settings, self._options, self._bytes_of, self._page_limit_s)
            identity = self._reader.start()
        except OcrsvcError as error:
            return ActorRefused(error.detail, error.remedy, self._host)
        self._node = self.node()
        at_once, computes_on = self._reader.at_once, self._reader.computes_on
        return ActorStarted(identity, __version__, computes_on, at_once, self._node, self._host)

    def read(self, group: PageGroup, data: bytes | None) -> tuple[PageResult, ...] | FileMissing:
        """The results of a group's pages."""
        assert self._reader is not None, "it was started"
        self._call.data, self._call.is_missing = data, False
        results = tuple(replace(result, worker=self._host) for result in self._reader.read(group))
        self._call.data = None
        return FileMissing(self._node) if self._call.is_missing else results

    def _bytes_of(self, group: PageGroup) -> bytes:
        """What came with the call of this thread, or what is found here."""
        data: bytes | None = self._call.data
        if data is not None:
            return data
        try:
            return self._load(group.file)
        except OperatorError:
            # Not there, not allowed, or without what its kind of address needs: another machine may have it.
            self._call.is_missing = True
            raise
