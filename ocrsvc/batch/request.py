"""The request of a batch command: sources, page options, the reader, and the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from ocrsvc.client.request import Options

RAY_ADDRESS: Final = "ray://"
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Size limit of a file or archive member, unless OCRSVC_MAX_BODY_BYTES is set."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The files and pages to plan; files above `max_file_bytes` fail without being read.

    `pages` selects pages of each document ("1-3,7"), `column` is a table's column of images (None finds it), `include`
    and `exclude` are name patterns, `sample` is a number of pages or a share ("2.5%").
    """

    sources: tuple[str, ...]
    pages: str | None = None
    column: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sample: str | None = None
    seed: int = 0
    is_sorted: bool = False
    max_file_bytes: int = MAX_FILE_BYTES

    def choice(self) -> dict[str, Any]:
        """Options that must be the same when a run is resumed: sources, and page selections that are not defaults."""
        # Ignore a slash that the shell added to a folder's name; in a URL it makes a difference.
        sources = [name if "://" in name else name.rstrip("/") or name for name in self.sources]
        defaults = asdict(SourceRequest((), max_file_bytes=self.max_file_bytes))
        return {name: value for name, value in asdict(self).items() if value != defaults[name]} | {"sources": sources}


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """How to call services: `at_once` page groups per service; the run stops after `patience_s` without any answer."""

    api_key: str | None = None
    ca: Path | None = None
    certificate: tuple[Path, Path] | None = None
    patience_s: float = 300.0
    at_once: int = 16


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """Ray actors, each with its own engine; `actors` None means all that fit on the nodes, also on nodes added later.

    `cpus` and `gpus` per actor may be fractions; `options` go to Ray. The run stops after `wait_s` without an actor.
    """

    actors: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    wait_s: float = 600.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The options of one `ocrsvc batch` command.

    `options` are page options; `on` names the reader, whose settings are in `environment`. The shard has the
    output parts whose number modulo `shards` is `shard`; the command ends after `limit` pages.
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
        """Options that must be the same when a run is resumed, in JSON types: lists instead of tuples."""
        own = {"format": self.outputs, "part_pages": self.part_pages, "shards": self.shards}
        return dict(orjson.loads(orjson.dumps(own | self.sources.choice() | self.options)))
