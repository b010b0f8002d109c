"""What actors and the process that leads them say to each other; pickled by Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ActorStarted:
    """An actor is ready.

    Attributes:
        identity: Engine, model and version, as PageReader.start gives them.
        ocrsvc: Version of the package.
        computes_on: Device, precision and execution provider of the engine, for people.
        at_once: Groups that it reads at once.
        node: Ray's id of its node.
        host: Name and process id, for people.
    """

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
