"""The files of all sources that a command names, and the bytes of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocrsvc.batch.sources import local_files
from ocrsvc.batch.tasks import SourceFile


def find_sources(sources: Sequence[str]) -> Iterator[SourceFile]:
    """The files of all sources, source after source, each in its own order. Raises SourceGone."""
    for source in sources:
        yield from local_files.find_files(source)


def load_file(file: SourceFile) -> bytes:
    """The bytes of a file; for any thread, and in any process. Raises SourceGone."""
    return local_files.load_file(file)
