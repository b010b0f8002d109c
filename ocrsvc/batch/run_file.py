"""What a run was begun with, made once (`_ocrsvc/run.json`): sources, options, formats, shards, reader and plan."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.plan import Plan, digest_of, write_plan
from ocrsvc.errors import BadOption, DamagedLedger, RunChanged

RUN_FILE: Final = "_ocrsvc/run.json"
FORMAT: Final = 4
"""Of a run's folder. Earlier ones had a ledger, or other manifests."""
_MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run as its first command described it.

    Attributes:
        asked: All that must stay the same: sources, formats, how pages are read, what chooses pages and parts.
        reader: Engine, model, version and settings.
        plan, plan_digest: Name of the plan's file in the destination, and its SHA-256.
        id: Random; the same for all revisions.
        revision: 1, and one more with each --update.
        ocrsvc: Version that began it.
    """

    asked: dict[str, Any]
    reader: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    plan_digest: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    revision: int = 1
    ocrsvc: str = __version__
    format: int = FORMAT

    @classmethod
    def read(cls, destination: Destination) -> Self | None:
        """The last revision of the run in a destination, if there is one. Raises DamagedLedger."""
        found, revision = None, 1
        while (described := cls._read(destination, revision)) is not None:
            found, revision = described, revision + 1
        return found

    @classmethod
    def _read(cls, destination: Destination, revision: int) -> Self | None:
        where = f"{_file_of(revision)} in {destination.address}"
        try:
            values = orjson.loads(destination.read(_file_of(revision)))
        except FileNotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise DamagedLedger(f"{where} is not JSON.", "Choose another destination.") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise DamagedLedger(
                f"{where} is of another version of ocrsvc, which this one cannot continue.",
                "Continue with that version, or choose another destination: the output there stays valid.",
            )
        return cls(**values)

    def planned(
        self, destination: Destination, files: Iterable[SourceFile], folder: Path, after: Plan | None = None
    ) -> Self | None:
        """The run as it is written down with a plan of these files; None where another process was first.

        The plan is drafted in `folder`. Behind the plan `after`, which stays, it is the next revision.
        """
        draft = folder / f"plan-{os.getpid()}.draft"
        with closing(write_plan(draft, files, self.asked["part_pages"], after)) as plan:
            if after is not None and plan.pages == after.pages:
                draft.unlink()
                return self
        digest, revision = digest_of(draft), self.revision + (after is not None)
        described = replace(self, plan=f"_ocrsvc/plan-{digest[:16]}.sqlite", plan_digest=digest, revision=revision)
        with destination.writing(described.plan) as output, draft.open("rb") as file:
            while piece := file.read(1 << 20):
                output.write(piece)
        draft.unlink()
        data = orjson.dumps(asdict(described), option=orjson.OPT_INDENT_2)
        if not destination.create(_file_of(described.revision), data):
            return None
        for name in destination.names("_ocrsvc"):
            # Of processes that were not first, or died.
            if name.startswith("plan-") and f"_ocrsvc/{name}" not in (described.plan, self.plan):
                destination.delete(f"_ocrsvc/{name}")
        return described

    def open_plan(self, destination: Destination, folder: Path) -> Plan:
        """The run's plan, copied into `folder` if need be. Raises DamagedLedger."""
        try:
            path = destination.local_copy(self.plan, folder)
            if digest_of(path) == self.plan_digest:
                return Plan(path)
        except (FileNotFoundError, sqlite3.DatabaseError):
            pass
        raise DamagedLedger(f"The plan in {destination.address} is damaged.", "Choose another destination.")

    def check_same(self, asked: dict[str, Any], address: str) -> None:
        """Raises RunChanged, naming what differs, if a command asks for something else than this run."""
        differing = [name for name in self.asked | asked if self.asked.get(name) != asked.get(name)]
        if not differing:
            return
        began, now = (
            ", ".join(f"{name} {_shown(choices.get(name))}" for name in differing) for choices in (self.asked, asked)
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


def open_known_run(destination: Destination, folder: Path) -> tuple[RunDescription, Plan]:
    """The run in a destination and its plan, copied into `folder` if need be. Raises BadOption where there is none."""
    described = RunDescription.read(destination)
    if described is None:
        raise BadOption(f"There is no batch run in {destination.address}.", "Name the folder of --out.")
    return described, described.open_plan(destination, folder)


def _file_of(revision: int) -> str:
    return RUN_FILE if revision == 1 else RUN_FILE.replace(".json", f"-{revision}.json")


def _named(reader: Mapping[str, str]) -> str:
    return " ".join(value for value in reader.values() if value)


def _shown(value: object) -> str:
    shown = "not given" if value is None else orjson.dumps(value).decode()
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
