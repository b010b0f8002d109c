"""The description of a run, written once (`_ocrsvc/run.json`): sources, options, formats, shards, reader and plan."""

import itertools
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination, ObjectDestination
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.plan import Plan, write_plan
from ocrsvc.batch.request import BatchRequest
from ocrsvc.batch.sources.plan_files import check_unchanged, find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.engines.model.files import digest_of
from ocrsvc.errors import BadOption, DamagedRun, RunChanged

RUN_FILE: Final = "_ocrsvc/run.json"
FORMAT: Final = 5
"""Version of the run folder's format (description, plan, manifests); a run with another version is not continued."""


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run as its first command described it; `asked` has the options that later commands must not change.

    `reader` has engine, model, version and settings; `plan` is the name of the plan's file, and `plan_digest` its
    SHA-256. `id` is random; each --update makes a revision. `ocrsvc` is the version that began the run.
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
        """Read the last revision of the run in a destination; None without a run. Raises DamagedRun."""
        found = None
        for revision in itertools.count(1):
            name = _file_of(revision)
            try:
                values = orjson.loads(destination.read(name))
            except FileNotFoundError:
                break
            except orjson.JSONDecodeError as error:
                where = f"{name} in {destination.address}"
                raise DamagedRun(f"{where} is not JSON.", "Choose another destination.") from error
            if not isinstance(values, dict) or values.get("format") != FORMAT:
                raise DamagedRun(
                    f"{name} in {destination.address} is of another version of ocrsvc, which this one cannot continue.",
                    "Continue with that version, or choose another destination: the output there stays valid.",
                )
            found = cls(**values)
        return found

    def open_plan(self, destination: Destination, folder: Path) -> Plan:
        """Open the run's plan, which is copied to `folder` if it is in an object store. Raises DamagedRun."""
        path = destination.folder / self.plan
        try:
            if isinstance(destination, ObjectDestination) and not (path := folder / path.name).exists():
                draft = path.with_suffix(".draft")
                draft.write_bytes(destination.read(self.plan))
                draft.replace(path)
            if digest_of(path) == self.plan_digest:
                return Plan(path)
        except (FileNotFoundError, sqlite3.DatabaseError):
            pass
        raise DamagedRun(f"The plan in {destination.address} is damaged.", "Choose another destination.")

    def check_same(self, asked: dict[str, Any], address: str) -> None:
        """Raises RunChanged, naming the differences, if a command's options are not those of this run."""
        differing = [name for name in self.asked | asked if self.asked.get(name) != asked.get(name)]
        if differing:
            began, now = (
                ", ".join(f"{name} {_shown(of.get(name))}" for name in differing) for of in (self.asked, asked)
            )
            remedy = "Repeat the first command to continue it, or choose another destination."
            if differing == ["shards"]:
                remedy = "Give each machine one of its shards, --shard I/N with the N that the run began with."
            raise RunChanged(f"The run in {address} began with {began}; now it is {now}.", remedy)

    def check_reader(self, reader: Mapping[str, str]) -> None:
        """Raises RunChanged if the reader's engine, model or settings are not those of this run."""
        if any(self.reader[key] != reader[key] for key in self.reader.keys() & reader.keys()):
            began, now = (" ".join(filter(None, each.values())) for each in (self.reader, reader))
            raise RunChanged(
                f"This run was begun with {began}, and now {now} would read.",
                "Use the same engine, model and settings, or choose another destination.",
            )


def open_known_run(destination: Destination, folder: Path) -> tuple[RunDescription, Plan]:
    """Read the run in a destination, and open its plan (see `open_plan`). Raises BadOption if there is no run."""
    described = RunDescription.read(destination)
    if described is None:
        raise BadOption(f"There is no batch run in {destination.address}.", "Name the folder of --out.")
    return described, described.open_plan(destination, folder)


def begin_run(
    destination: Destination, request: BatchRequest, reader: Mapping[str, str], folder: Path, counts: PlanningCounts
) -> RunDescription:
    """Plan a run; if another process has planned it meanwhile, that plan is used. Raises as `check_same`."""
    new, files = RunDescription(request.asked(), reader), find_sources(request.sources, counts)
    described = _plan(destination, new, files, folder) or RunDescription.read(destination)
    assert described is not None, "another process has written it"
    described.check_same(new.asked, destination.address)
    return described


def continue_run(
    destination: Destination, described: RunDescription, request: BatchRequest, folder: Path, counts: PlanningCounts
) -> RunDescription:
    """Check that a run can be continued, and with --update add new files. Raises RunChanged if sources differ."""
    described.check_same(request.asked(), destination.address)
    with closing(described.open_plan(destination, folder)) as plan:
        if not request.as_planned:
            check_unchanged(plan.all_files(), request.sources, destination.address, may_grow=request.update)
        if not request.update:
            return described
        if request.sources.sample is not None:
            raise BadOption("A sample cannot be updated.", "Leave --update out, or choose another destination.")
        new = find_sources(request.sources, counts, plan.all_files())
        longer = _plan(destination, described, new, folder, after=plan)
    if longer is None:
        raise RunChanged(
            f"Another process has planned the new files of the run in {destination.address} meanwhile.",
            "Repeat the command without --update.",
        )
    return longer


def _plan(
    destination: Destination, run: RunDescription, files: Iterable[SourceFile], folder: Path, after: Plan | None = None
) -> RunDescription | None:
    """Write a run's plan and description, or with `after` the next revision; None if another process wrote it first."""
    draft = folder / f"plan-{os.getpid()}.draft"
    try:
        with closing(write_plan(draft, files, run.asked["part_pages"], after)) as plan:
            if after is not None and plan.pages == after.pages:
                return run
        digest, revision = digest_of(draft), run.revision + (after is not None)
        planned = replace(run, plan=f"_ocrsvc/plan-{digest[:16]}.sqlite", plan_digest=digest, revision=revision)
        with destination.writing(planned.plan) as output, draft.open("rb") as file:
            shutil.copyfileobj(file, output, 1 << 20)
    finally:
        draft.unlink(missing_ok=True)
    if not destination.create(_file_of(revision), orjson.dumps(asdict(planned), option=orjson.OPT_INDENT_2)):
        return None
    for name in destination.names("_ocrsvc"):
        # Delete plans of processes that died, or that lost to another process planning the same run.
        if name.startswith("plan-") and f"_ocrsvc/{name}" not in (planned.plan, run.plan):
            destination.delete(f"_ocrsvc/{name}")
    return planned


def _file_of(revision: int) -> str:
    return RUN_FILE if revision == 1 else RUN_FILE.replace(".json", f"-{revision}.json")


def _shown(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = ",".join(value)
    shown = value if isinstance(value, str) else orjson.dumps(value).decode()
    if value is None or not shown:
        return "not given"
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
