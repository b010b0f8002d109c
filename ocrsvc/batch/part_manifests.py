"""Writes and reads parts of the output; a part is finished when its manifest exists, which is written last."""

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson

from ocrsvc.batch.destination import Destination, WrittenFile
from ocrsvc.batch.outputs.output_formats import open_writers
from ocrsvc.batch.pages import FileResults, Load
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.work_file import PageFacts, WorkFile
from ocrsvc.errors import DamagedRun

PARTS: Final = "_ocrsvc/parts"
KEPT: Final = "_ocrsvc/kept"
"""Folder for the results of parts with failed pages, kept until --retry-failed needs them."""
UNFINISHED: Final = "unfinished/"
"""Folder for parts that --limit left incomplete."""
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished part of the output: `done` counts pages that were read, `failed` counts failed pages by error code.

    `files` has size and SHA-256 by name, `pages` the facts of each page in plan order, `reader` engine and model.
    """

    part: int
    done: int
    failed: Mapping[str, int]
    files: Mapping[str, Sequence[Any]]
    pages: Sequence[PageFacts]
    reader: Mapping[str, str]


def finished_parts(destination: Destination) -> list[int]:
    """Numbers of the parts that have a manifest in the output. Raises OSError."""
    names = (name.removesuffix(".json") for name in destination.names(PARTS))
    return [int(name) for name in names if name.isdecimal()]


def read_manifest(destination: Destination, part: int) -> Manifest:
    """Read the manifest of a part. Raises FileNotFoundError, OSError and DamagedRun."""
    data = destination.read(_manifest_name(part))
    try:
        values = orjson.loads(data)
        return Manifest(**values | {"pages": [PageFacts(*page) for page in values["pages"]]})
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRun(
            f"{_manifest_name(part)} in {destination.address} is damaged.", "Remove it: its part is read again."
        ) from error


def read_manifests(destination: Destination, parts: Iterable[int]) -> Iterator[Manifest]:
    """Read the manifests of these parts, several at once. Raises as `read_manifest`."""
    rest = iter(parts)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while some := list(islice(rest, 4 * _AT_ONCE)):
            yield from pool.map(partial(read_manifest, destination), some)


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes parts in the formats `outputs` from the work file, in one thread. `root` is the sources' common folder."""

    destination: Destination
    plan: Plan
    work: WorkFile
    outputs: Sequence[str]
    load: Load
    reader: Mapping[str, str]
    root: str = ""

    def write(self, part: int, *, is_reopened: bool) -> Manifest:
        """Write a part's files and manifest; returns the manifest, even if another process wrote it. Raises OSError.

        `is_reopened`: the part is in the output already, and is replaced.
        """
        if is_reopened:
            # Make the part unfinished: if this process dies now, the next one takes its results from the folder KEPT.
            self.destination.delete(_manifest_name(part))
        try:
            files = self.write_files(part, replace=is_reopened)
        except FileExistsError:
            # Another process wrote these files: use its manifest. If it died before writing one, write the files again.
            if part in finished_parts(self.destination):
                return read_manifest(self.destination, part)
            files = self.write_files(part, replace=True)
        pages = dict(self.work.facts(self.plan.pages_of(part)))
        failed = Counter(facts.error for facts in pages.values() if facts.error)
        named = {file.name: (file.size, file.sha256) for file in files}
        manifest = Manifest(part, len(pages) - failed.total(), dict(failed), named, list(pages.values()), self.reader)
        if failed:
            kept = self.destination.writing(_kept_name(part))
            with kept as output, gzip.GzipFile("", "wb", 6, output, 0) as lines:
                for n, facts in pages.items():
                    lines.write(orjson.dumps([n, *facts]) + b"\n" + self._record({n: n}, n) + b"\n")
        data = orjson.dumps(asdict(manifest) | {"pages": list(map(list, manifest.pages))})
        if not self.destination.create(_manifest_name(part), data):
            return read_manifest(self.destination, part)
        if not failed:
            self.destination.delete(_kept_name(part))
        return manifest

    def write_files(self, part: int, *, replace: bool, folder: str = "") -> list[WrittenFile]:
        """Write a part's output files from the results that exist, and no manifest. Raises as `write`."""
        writers = open_writers(self.outputs, self.reader, folder, self.root)
        return [write(self.destination, part, self._results(part), replace=replace) for write in writers]

    def _results(self, part: int) -> Iterator[FileResults]:
        known = self.work.errors(self.plan.pages_of(part))
        for first, file in self.plan.files_of(part):
            index_of = {number: first + at for at, number in enumerate(file.pages) if first + at in known}
            yield FileResults(file, list(index_of), partial(self._record, index_of), partial(self.load, file))

    def _record(self, index_of: Mapping[int, int], number: int) -> bytes:
        record = self.work.record(index_of[number])
        if record is None:
            raise DamagedRun(f"A result in {self.work.path} is damaged.", "Repeat the command: it is read again.")
        return record


def read_kept(destination: Destination, part: int) -> Iterator[tuple[int, bytes, PageFacts]]:
    """Yield plan number, JSON record and facts of all pages of a part with failures. Raises OSError and DamagedRun."""
    try:
        with closing(destination.open(_kept_name(part))) as file, gzip.GzipFile(fileobj=file) as lines:
            while head := lines.readline():
                n, *facts = orjson.loads(head)
                yield n, lines.readline().removesuffix(b"\n"), PageFacts(*facts)
    except FileNotFoundError:
        return
    except (ValueError, EOFError, gzip.BadGzipFile, TypeError) as error:
        raise DamagedRun(
            f"{_kept_name(part)} in {destination.address} is damaged.",
            f"Remove it and {_manifest_name(part)}: the part is read again.",
        ) from error


def kept_parts(destination: Destination) -> set[int]:
    """Numbers of the parts with failed pages, whose results are stored for --retry-failed. Raises OSError."""
    return {int(name.partition(".")[0]) for name in destination.names(KEPT) if name[:1].isdecimal()}


def _manifest_name(part: int) -> str:
    return f"{PARTS}/{part:07d}.json"


def _kept_name(part: int) -> str:
    return f"{KEPT}/{part:07d}.jsonl.gz"
