"""Verifies a run: its output contains every page once, and agrees with the manifests and the plan."""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.outputs.source_files import is_listing
from ocrsvc.batch.pages import record_head
from ocrsvc.batch.part_manifests import Manifest, finished_parts, read_manifest
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.run_file import open_known_run

_PART_FILE: Final = re.compile(r"(?:.*/)?pages-(\d+)\.(.*)")
_NO_ERROR: Final = b'"error":null}\n'


@dataclass(slots=True)
class Verification:
    """The result of a check: numbers of planned and finished pages and parts, and a sentence per problem."""

    pages: int = 0
    done: int = 0
    failed: int = 0
    parts: int = 0
    finished: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every part is in the output."""
        return self.finished == self.parts


def verify(destination: Destination) -> Verification:
    """Check the run in a destination; reads the whole output once. Raises BadOption, DamagedRun and OSError."""
    with tempfile.TemporaryDirectory() as folder:
        _, plan = open_known_run(destination, Path(folder))
        with closing(plan):
            found, names = Verification(plan.pages, parts=plan.parts), set[str]()
            for part in finished_parts(destination):
                if part >= plan.parts:
                    found.problems.append(f"Part {part} is not of this run.")
                    continue
                manifest = read_manifest(destination, part)
                found.finished += 1
                found.done += manifest.done
                found.failed += sum(manifest.failed.values())
                found.problems += _check_part(destination, plan, manifest)
                names.update(manifest.files)
            # Report files that belong to no part: a program that reads the whole folder would read them, too.
            for below in sorted({name.rpartition("/")[0] for name in names if _PART_FILE.fullmatch(name)}):
                for name in destination.names(below):
                    if (match := _PART_FILE.fullmatch(name)) and int(match[1]) >= plan.parts:
                        found.problems.append(f"{below}/{name}".removeprefix("/") + " is of no part of this run.")
            return found


def _check_part(destination: Destination, plan: Plan, manifest: Manifest) -> Iterator[str]:
    if len(manifest.pages) != len(plan.pages_of(manifest.part)):
        yield f"Part {manifest.part} has {len(manifest.pages)} pages, which are not those of the plan."
    for name, (size, sha256) in manifest.files.items():
        problem = check_file(destination, name, size, sha256)
        if problem:
            yield problem
        elif is_listing(name):
            for row in map(orjson.loads, destination.read(name).splitlines()):
                if "file" in row and (problem := check_file(destination, row["file"], row["bytes"], row["sha256"])):
                    yield f"{name}: {problem}"
        elif (match := _PART_FILE.fullmatch(name)) and match[2] == "jsonl":
            yield from (f"{name}: {problem}" for problem in _check_lines(destination, plan, manifest, name))


def check_file(destination: Destination, name: str, size: int, sha256: str) -> str:
    """Compare an output file with its size and SHA-256; returns the problem, or "". Raises OSError."""
    try:
        with closing(destination.open(name)) as file:
            digest, found = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()  # type: ignore[arg-type]
    except FileNotFoundError:
        return f"{name} is not there."
    what = f"{name} is not what was written: it has {found} bytes, and {size} were written."
    return what if (found, digest) != (size, sha256) else ""


def _check_lines(destination: Destination, plan: Plan, manifest: Manifest, name: str) -> Iterator[str]:
    """Check the JSON lines of a part; yield a sentence on the first that differs from the plan or the manifest."""
    heads = [record_head(file.name, number) for _, file in plan.files_of(manifest.part) for number in file.pages]
    with closing(destination.open(name)) as file:
        for number, (line, head, facts) in enumerate(zip_longest(file, heads, manifest.pages), 1):
            if facts is None or head is None or line is None or not line.startswith(head):
                yield f"line {number} is not {(head or b'').decode()}…, which is next in the plan."
                return
            if line.endswith(_NO_ERROR) is bool(facts.error):
                yield f"line {number} and the manifest do not agree on whether the page was read."
                return
