"""Batch runs in one process: a destination that dies or fills at a chosen moment, a reader without an engine."""

import contextlib
import errno
import io
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import cv2
import image_support
import numpy as np
import orjson
import pytest
from documents import GRAY, pdf, tiff

from ocrsvc.batch import run_file, start
from ocrsvc.batch.destination import Destination, HashedFile
from ocrsvc.batch.pages import PageGroup, PageResult, SourceFile, failure_of, result_of
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.request import BatchRequest, SourceRequest
from ocrsvc.batch.run import Run
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.plan_files import find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.batch.start import open_run
from ocrsvc.batch.work_file import WorkFile
from ocrsvc.errors import EngineFailed, UnsupportedImage

READER = {"engine": "double", "model": "none", "version": "1"}


class Died(BaseException):
    """Simulates the death of the process: no later change reaches the disk."""


class FaultyFolder(Destination):
    """A destination that fails from change number `fault_at` (from 0) on: the process dies, or the disk is full."""

    def __init__(self, folder: Path, fault_at: int | None = None, fault: Literal["die", "full"] = "die") -> None:
        super().__init__(folder)
        self._fault_at, self._fault = fault_at, fault
        self.changes = 0

    def change(self) -> None:
        """Count one change; raises Died or OSError from number `fault_at` on."""
        self.changes += 1
        if self._fault_at is not None and self.changes > self._fault_at:
            raise Died if self._fault == "die" else OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def writing(self, name: str, *, replace: bool = True) -> Iterator[HashedFile]:
        self.change()
        with super().writing(name, replace=replace) as file:
            yield file
            self.change()

    def create(self, name: str, data: bytes) -> bool:
        self.change()
        return super().create(name, data)

    def note(self, name: str, data: bytes) -> None:
        self.change()
        super().note(name, data)

    def delete(self, name: str) -> None:
        self.change()
        super().delete(name)


class FaultyWork(WorkFile):
    """A work file whose commits and removal count as changes of its destination."""

    destination: FaultyFolder

    def commit(self) -> None:
        self.destination.change()
        super().commit()

    def remove(self) -> None:
        self.destination.change()
        super().remove()


class DoubleReader:
    """Reads pages without an engine; a page's text names the reader and the file's version.

    Files in `failing` fail as if the engine had, files in `refused` as non-images; `before` is called before each page.
    """

    at_once = 2
    is_elsewhere = False

    def __init__(
        self,
        name: str = "one",
        failing: Collection[str] = (),
        refused: Collection[str] = (),
        before: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self.name, self.failing, self.refused, self.before = name, failing, refused, before
        self.reads: Counter[tuple[str, int]] = Counter()

    def start(self) -> Mapping[str, str]:
        return READER

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        for number in group.pages:
            self.before(group.file.name)
            self.reads[group.file.name, number] += 1
            if group.file.name in self.failing:
                yield failure_of(group, number, EngineFailed("The engine failed."))
            elif group.file.name in self.refused:
                yield failure_of(group, number, UnsupportedImage("No image."))
            else:
                text = f"{self.name} {group.file.version}"
                lines = [{"text": text, "confidence": 0.5, "box": [[0, 0], [9, 0], [9, 9], [0, 9]]}]
                yield result_of(group, number, {"text": text, "lines": lines}, 0.001, "double")

    def close(self) -> None:
        pass


def files_of(count: int, pages: int = 1, contents: int | None = None) -> list[SourceFile]:
    """Files of `pages` pages each. A version is the number of a content; there are `contents` different ones."""
    return [
        SourceFile(f"{number:04d}", f"{number:04d}", str(number % (contents or count)), 9, pages, range(1, pages + 1))
        for number in range(count)
    ]


class _Loader:
    def __init__(self, _max_bytes: int, **_: object) -> None:
        """Accept the arguments of SourceLoader."""

    def __call__(self, file: SourceFile) -> bytes:
        return b"content " + file.version.encode()

    def close(self) -> None:
        pass


@contextlib.contextmanager
def opened(
    folder: Path | FaultyFolder, files: Sequence[SourceFile], reader: DoubleReader, **fields: Any
) -> Iterator[Run]:
    """Open the run that a command would open for these files; `fields` override those of its BatchRequest."""
    destination = folder if isinstance(folder, FaultyFolder) else FaultyFolder(folder)
    request = replace(BatchRequest(SourceRequest(("there",)), {}, ("jsonl",), part_pages=5), **fields)
    work = type("Work", (FaultyWork,), {"destination": destination})
    patches: list[AbstractContextManager[object]] = [
        mock.patch.object(start, "open_reader", return_value=reader),
        mock.patch.object(run_file, "find_sources", return_value=files),
        mock.patch.object(run_file, "check_unchanged"),
        mock.patch.object(start, "SourceLoader", _Loader),
        mock.patch.object(start, "WorkFile", work),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield stack.enter_context(open_run(destination, request, RunCounts(lambda: 0.0)))


def execute(folder: Path | FaultyFolder, files: Sequence[SourceFile], reader: DoubleReader, **fields: Any) -> RunCounts:
    """Begin or continue a run as a command does; the arguments are those of `opened`."""
    with opened(folder, files, reader, **fields) as run:
        return run.execute()


def use_fake_engine(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """Set the environment: commands in this process use the fake engine in threads, and these settings."""
    for name, value in ({"ENGINE": "fake", "ISOLATION": "thread"} | settings).items():
        monkeypatch.setenv(f"OCRSVC_{name}", value)


def draw_images(folder: Path, count: int) -> list[str]:
    """Create a folder of images of different heights; returns the text that the fake engine reads on each."""
    folder.mkdir()
    texts = []
    for number in range(count):
        image = np.full((20 + number, 40, 3), 255, np.uint8)
        cv2.imwrite(str(folder / f"{number:03d}.png"), image)
        texts.append(f"{zlib.crc32(image.data):08x}")
    return texts


def output(folder: Path, below: str = "") -> list[dict[str, Any]]:
    """The records in the output files, in file order."""
    names = sorted((folder / below).glob("pages-*.jsonl"))
    return [orjson.loads(line) for name in names for line in name.read_bytes().splitlines()]


def is_each_page_once(folder: Path, files: Sequence[SourceFile]) -> bool:
    """Return whether the output has each page of these files once, in order."""
    wanted = [(file.name, number) for file in files for number in file.pages]
    return [(line["source"], line["page"]) for line in output(folder)] == wanted


def png(shade: int = 255) -> bytes:
    """A small image in one shade; different shades give different bytes."""
    return image_support.png(40, 20, shade)


def document(pages: int, form: str = "PDF") -> bytes:
    """A PDF or TIFF with this number of pages."""
    return pdf(*[GRAY] * pages) if form == "PDF" else tiff([200 + number for number in range(pages)])


def plan(*sources: str | Path, counts: PlanningCounts | None = None, **options: Any) -> list[SourceFile]:
    """Plan a run over these sources; returns the files found."""
    request = SourceRequest(tuple(map(str, sources)), **options)
    return list(find_sources(request, PlanningCounts() if counts is None else counts))


def names(files: list[SourceFile], below: Path) -> list[str]:
    """The names of planned files relative to the folder `below`."""
    return [file.name.removeprefix(f"{below}/") for file in files]


def load(file: SourceFile, max_bytes: int = 1 << 26) -> bytes:
    """The bytes of a planned file, loaded by a new SourceLoader as in another process."""
    loader = SourceLoader(max_bytes)
    try:
        return loader(file)
    finally:
        loader.close()


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar archive of these members with the standard library."""
    with tarfile.open(path, mode, format=form) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
