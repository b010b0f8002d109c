"""What a command asks for: sources, how their pages are read and by whom, and the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    """What is to be planned; larger files fail unread.

    `pages` are those of each document ("1-3,7"), `column` is a table's column of images (None finds it), `include` and
    `exclude` are patterns of names, `sample` is a number of pages or a share ("2.5%").
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
        defaults = asdict(SourceRequest((), most_file_bytes=self.most_file_bytes))
        return {name: value for name, value in asdict(self).items() if value != defaults[name]} | {"sources": sources}


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """How services are asked, `at_once` groups at each; the run stops after `patience_s` without an answer of any."""

    api_key: str | None = None
    ca: Path | None = None
    certificate: tuple[Path, Path] | None = None
    patience_s: float = 300.0
    at_once: int = 16


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """Actors, each with an engine of its own: None is as many as the nodes have room for, also later ones.

    `cpus` and `gpus` of each may be fractions; `options` are others of Ray's. `wait_s` seconds without any end the run.
    """

    actors: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    wait_s: float = 600.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A command's run; see the options of `ocrsvc batch`.

    `options` say how pages are read, `on` names the reader, with the settings of `environment`. The shard has the parts
    whose number leaves `shard` when divided by `shards`; `limit` pages end the command.
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
