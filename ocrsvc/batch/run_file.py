"""What a run was begun with (`_ocrsvc/run.json`): sources, options, formats, shards, reader and plan."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import orjson

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination
from ocrsvc.errors import DamagedLedger, RunChanged

RUN_FILE: Final = "_ocrsvc/run.json"
FORMAT: Final = 3
"""Of a run's folder. Earlier ones had a ledger."""
_MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run as its first command described it.

    Attributes:
        sources: As the command named them.
        options: How pages are read, by the native API's names.
        outputs: Names of the output formats.
        planning: What else chooses pages and parts: pages, sample, part_pages, shards and the like.
        reader: Engine, model, version and settings.
        plan, plan_digest: Name of the plan's file in the destination, and its SHA-256.
        id: Random; the same for all revisions.
        revision: 1, and one more with each --update.
        ocrsvc: Version that began it.
    """

    sources: tuple[str, ...]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]
    planning: Mapping[str, Any]
    reader: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    plan_digest: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    revision: int = 1
    ocrsvc: str = __version__
    format: int = FORMAT

    def write(self, destination: Destination) -> bool:
        """Have the run be this, unless another process has written this revision; returns whether it is."""
        data = orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)
        return destination.create(_file_of(self.revision), data)

    @classmethod
    def read(cls, destination: Destination) -> Self | None:
        """The last revision of the run in a destination, if there is one. Raises DamagedLedger."""
        found, revision = None, 1
        while (described := cls._read(destination, revision)) is not None:
            found, revision = described, revision + 1
        return found

    @classmethod
    def _read(cls, destination: Destination, revision: int) -> Self | None:
        name = _file_of(revision)
        where = f"{name} in {destination.address}"
        try:
            values = orjson.loads(destination.read(name))
        except FileNotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise DamagedLedger(f"{where} is not JSON.", "Choose another destination.") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise DamagedLedger(
                f"{where} is of another version of ocrsvc, which this one cannot continue.",
                "Continue with that version, or choose another destination: the output there stays valid.",
            )
        values["sources"], values["outputs"] = tuple(values["sources"]), tuple(values["outputs"])
        return cls(**values)

    def check_same(self, asked: RunDescription, address: str) -> None:
        """Raises RunChanged, naming what differs, if a command asks for something else than this run."""
        had, wanted = self._choices(), asked._choices()
        differing = [name for name in had | wanted if had.get(name) != wanted.get(name)]
        if not differing:
            return
        began, now = (
            ", ".join(f"{name} {_shown(choices.get(name))}" for name in differing) for choices in (had, wanted)
        )
        remedy = "Repeat the first command to continue it, or choose another destination."
        if differing == ["shards"]:
            remedy = "Give each machine one of its shards, --shard I/N with the N that the run began with."
        raise RunChanged(f"The run in {address} began with {began}; now it is {now}.", remedy)

    def check_reader(self, reader: Mapping[str, str]) -> None:
        """Raises RunChanged if another engine or model, or one with other settings, would read."""
        if any(self.reader[key] != reader[key] for key in self.reader.keys() & reader.keys()):
            raise RunChanged(
                f"This run was begun with {_named(self.reader)}, and now {_named(reader)} would read.",
                "Use the same engine, model and settings, or choose another destination.",
            )

    def _choices(self) -> dict[str, Any]:
        """All that must stay the same, by name, with lists for tuples as in the file."""
        sources = [_without_slash(source) for source in self.sources]
        own: dict[str, Any] = {"sources": sources, "format": self.outputs, **self.planning, **self.options}
        return dict(orjson.loads(orjson.dumps(own)))


def _without_slash(source: str) -> str:
    """A folder's name without the slash that shells add; an address differs by it."""
    return source if "://" in source else source.rstrip("/") or source


def _file_of(revision: int) -> str:
    return RUN_FILE if revision == 1 else RUN_FILE.replace(".json", f"-{revision}.json")


def _named(reader: Mapping[str, str]) -> str:
    return " ".join(value for value in reader.values() if value)


def _shown(value: object) -> str:
    shown = "not given" if value is None else orjson.dumps(value).decode()
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
