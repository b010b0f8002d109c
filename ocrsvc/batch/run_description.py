"""What a run began with: its sources, options and outputs. The same command again must mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

from ocrsvc import __version__
from ocrsvc.batch.store.contract import Store
from ocrsvc.errors import DamagedLedger, RunChanged

RUN_FILE: Final = "_ocrsvc/run.json"
FORMAT: Final = 2
"""Of the run's files: 1 is of runs whose Parquet of lines and words does not say where lines come from."""
_MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run, as its first command described it.

    Attributes:
        sources: As they were named.
        options: How pages are read, by the names of the native API's options.
        outputs: Names of the output formats.
        planning: What else chooses the pages and their parts: pages, sample, part_pages and the like.
        plan: Digest of the plan.
        plan_file: The plan's name in the store.
        ocrsvc: Version that began it.
        revision: How often it was planned: 1, and one more with each --update.
        format: Of its files, the same from its first part to its last, whichever version goes on with it.
    """

    sources: tuple[str, ...]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]
    planning: Mapping[str, Any]
    plan: str = ""
    plan_file: str = ""
    ocrsvc: str = __version__
    revision: int = 1
    format: int = FORMAT

    def write(self, store: Store) -> bool:
        """Have the run be this, unless another process has written this revision; whether the store holds this one."""
        if store.create(_file_of(self.revision), self._to_json()):
            return True
        # An object store may have done it, and its answer been lost.
        written = self._read(store, self.revision)
        return written is not None and written.plan_file == self.plan_file

    def _to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)

    @classmethod
    def read(cls, store: Store) -> Self | None:
        """The run that the store holds, in its last revision, if any. Raises DamagedLedger."""
        found, revision = None, 1
        while (described := cls._read(store, revision)) is not None:
            found, revision = described, revision + 1
        return found

    @classmethod
    def _read(cls, store: Store, revision: int) -> Self | None:
        name = _file_of(revision)
        try:
            values = orjson.loads(store.read(name))
        except FileNotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise DamagedLedger(f"{name} in {store.address} is no JSON.", "Take another destination.") from error
        if values.get("format") not in range(1, FORMAT + 1):
            raise DamagedLedger(
                f"{name} in {store.address} has another format.", "Go on with the version that wrote it."
            )
        values["sources"], values["outputs"] = tuple(values["sources"]), tuple(values["outputs"])
        return cls(**values)

    def check_same(self, asked: RunDescription, address: str) -> None:
        """Raises RunChanged, naming what differs, if a command asks for something else than this run."""
        had, wanted = self._choices(), asked._choices()
        differing = [name for name in had | wanted if had.get(name) != wanted.get(name)]
        if differing:
            began, now = (
                ", ".join(f"{name} {_shown(choices.get(name))}" for name in differing) for choices in (had, wanted)
            )
            raise RunChanged(
                f"The run in {address} began with {began}; now it is {now}.",
                "Repeat the first command to go on with it, or take another destination.",
            )

    def _choices(self) -> dict[str, Any]:
        """All that must stay the same, by its name, as it is read from a file: with lists for tuples."""
        sources = [_without_slash(source) for source in self.sources]
        own: dict[str, Any] = {"sources": sources, "format": self.outputs, **self.planning, **self.options}
        return dict(orjson.loads(orjson.dumps(own)))


def _without_slash(source: str) -> str:
    """A folder's name as it is without the slash that shells add; an address differs by it."""
    return source if "://" in source else source.rstrip("/") or source


def _file_of(revision: int) -> str:
    """Each revision is a file of its own, which one process alone can create."""
    return RUN_FILE if revision == 1 else RUN_FILE.replace(".json", f"-{revision}.json")


def _shown(value: object) -> str:
    shown = "not given" if value is None else orjson.dumps(value).decode()
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
