"""What a command asks for: sources, how their pages are read and by whom, and the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from ocrsvc.client.request import Options

RAY_ADDRESS: Final = "ray://"
MOST_FILE_BYTES: Final = 64 * 1024 * 1024
"""What a file or a member may hold unless OCRSVC_MAX_BODY_BYTES says otherwise."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What is to be planned.

    `pages` are those of each document, such as "1-3,7", `column` is that of tables which holds the images (None finds
    it), `include` and `exclude` are patterns of names, `sample` is how many pages to take, "1000", or which share,
    "2.5%". What is larger than `most_file_bytes` fails without being read.
    """

    sources: tuple[str, ...]
    pages: str | None = None
    column: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sample: str | None = None
    seed: int = 0
    is_sorted: bool = False
    most_file_bytes: int = MOST_FILE_BYTES

    def choice(self) -> dict[str, Any]:
        """What must stay the same during a run: the sources, and what chooses pages, as far as it was given."""
        # A folder's name has not the slash that shells add; an address differs by it.
        sources = [name if "://" in name else name.rstrip("/") or name for name in self.sources]
        given = {each.name: getattr(self, each.name) for each in fields(self)[1:-1]}
        defaults = asdict(SourceRequest(()))
        return {"sources": sources} | {name: value for name, value in given.items() if value != defaults[name]}


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


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A command's run.

    `options` say how pages are read, `on` who reads, with `environment` for settings. Parts are worked on whose number
    leaves `shard` when divided by `shards`, until `limit` pages are read. With `keeps_going` pages fail also where
    whatever reads seems to be broken, with `as_planned` the run goes on whatever became of the sources, with `update`
    files that are new are planned, too, with `take_over` another machine's process may still work.
    """

    sources: SourceRequest
    options: Options
    outputs: tuple[str, ...]
    on: str = "local"
    environment: Mapping[str, str] = field(default_factory=dict)
    part_pages: int = 500
    attempts: int = 3
    shard: int = 0
    shards: int = 1
    limit: int | None = None
    dedupe: bool = False
    keeps_going: bool = False
    retry_failed: bool = False
    as_planned: bool = False
    update: bool = False
    take_over: bool = False
    work: Path | None = None
    cluster: ClusterRequest = field(default_factory=ClusterRequest)
    services: ServiceAccess = field(default_factory=ServiceAccess)

    def asked(self) -> dict[str, Any]:
        """What must stay the same in a run, with lists for tuples as in its file."""
        own = {"format": self.outputs, "part_pages": self.part_pages, "shards": self.shards}
        return dict(orjson.loads(orjson.dumps(own | self.sources.choice() | self.options)))
