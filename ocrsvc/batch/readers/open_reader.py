"""Opens what reads the pages of a run, as --on names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.errors import BadOption, OperatorError

if TYPE_CHECKING:
    from ocrsvc.batch.pages import PageReader, SourceFile
    from ocrsvc.client.request import Options

UNREACHABLE_S: Final = 10.0
"""How long services may be out of reach when the run begins."""
RAY_ADDRESS: Final = "ray://"


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """How services are asked: `api_key`, `ca` and `certificate` are those of `ocrsvc.client.Client`.

    The run waits `patience_s` for any of them to answer before it stops; `at_once` groups are under way at each, until
    it refuses one.
    """

    api_key: str | None = None
    ca: Path | None = None
    certificate: tuple[Path, Path] | None = None
    patience_s: float = 300.0
    at_once: int = 16


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """Actors that read, each with an engine of its own; None is as many as the nodes have room for, also later ones.

    `cpus`, which are its engine threads, and `gpus` of each may be fractions; `options` are others of Ray's for them.
    After `wait_s` seconds without any the run is given up.
    """

    actors: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    wait_s: float = 600.0

    def needs(self) -> dict[str, float]:
        """What each takes of its node, by Ray's names of resources; memory in bytes."""
        own = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.options.get("memory", 0))}
        return {name: amount for name, amount in (own | dict(self.options.get("resources", {}))).items() if amount}

    def room_in(self, free: Mapping[str, float]) -> int:
        """How many fit into what is free."""
        # Ray counts in ten-thousandths; a hundredth GPU must not be lost to rounding.
        return min((int(free.get(name, 0) / amount + 1e-6) for name, amount in self.needs().items()), default=1)


@dataclass(frozen=True, slots=True)
class ReaderRequest:
    """What is asked of a reader: `load` gives the bytes of a file, in any thread or process."""

    on: str
    options: Options
    load: Callable[[SourceFile], bytes]
    environment: Mapping[str, str]
    cluster: ClusterRequest = field(default_factory=ClusterRequest)
    services: ServiceAccess = field(default_factory=ServiceAccess)


def open_reader(request: ReaderRequest) -> PageReader:
    """The reader, not started. Raises BadOption and SettingsError."""
    if request.on == "local":
        from ocrsvc.batch.readers.local_reader import open_local

        return open_local(request)
    if request.on == "ray" or request.on.startswith(RAY_ADDRESS):
        from ocrsvc.batch.readers.ray_reader import open_ray

        return open_ray(request)
    if re.match(r"(dns\+)?https?://", request.on):
        return _open_services(request)
    raise BadOption(
        f"--on is {request.on!r}: accepted are local, ray, ray://HOST:PORT, and addresses of services such as "
        "http://host:8000."
    )


def _open_services(request: ReaderRequest) -> PageReader:
    try:
        from ocrsvc.batch.readers.service_reader import ServiceReader
        from ocrsvc.client.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(f"--on needs the package {error.name}.", "Install the extra: ocrsvc[client].") from error
    from ocrsvc.client.balancing.rules import Rules

    access = request.services
    client = Client(
        request.on.split(","),
        api_key=access.api_key,
        ca=access.ca,
        certificate=access.certificate,
        priority="batch",
        rules=Rules(at_once=access.at_once, patience_s=UNREACHABLE_S),
    )
    return ServiceReader(client, request.options, lambda group: request.load(group.file), access.patience_s)
