"""The actor of a Ray cluster: one engine on a node, which reads groups of pages."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ocrsvc import __version__
from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of
from ocrsvc.batch.readers.local_reader import LocalReader
from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.results import ReadOptions
from ocrsvc.settings.describe import is_secret
from ocrsvc.settings.load import RawValue, check_settings, gather


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
    computes_on: str
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
        return ActorStarted(reader.start(), __version__, reader.computes_on, reader.at_once, self._host)

    def read(self, group: PageGroup, data: bytes | None) -> tuple[PageResult, ...] | None:
        """The results of a group's pages; `data` is the file, None if the actor is to load it.

        None if this node cannot load the file: another machine may have it.
        """
        try:
            data = self._arguments.load(group.file) if data is None else data
        except OperatorError:
            return None
        except OcrsvcError as error:
            return tuple(failure_of(group, number, error, worker=self._host) for number in group.pages)
        return tuple(replace(result, worker=self._host) for result in self._reader.read(group, data))
