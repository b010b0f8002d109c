"""Reads files of the same content once: finds them by their digests, and copies results from one to the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import orjson

from ocrsvc.batch.ledger.content_index import DIGEST_BYTES, ContentIndex
from ocrsvc.batch.page_record import record_head
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.tasks import PageGroup, PageResult, SourceFile
from ocrsvc.errors import OcrsvcError

COPIED: Final = "copied"
"""The worker of pages whose results were copied."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """What the content of a group's file says.

    Both are None where the file cannot be loaded, which reading it will say.

    Attributes:
        same_as: The number in the plan of the first page of the first file that has this content, if that is another.
        digest: Of the content, where the group begins the first file that has it.
    """

    same_as: int | None = None
    digest: bytes | None = None


class Deduplication:
    """Finds the files of groups that were met under another name; for any thread.

    Args:
        contents: The files whose content is known.
        load: Gives the bytes of a file; raises OcrsvcError.
    """

    def __init__(self, contents: ContentIndex, load: Callable[[SourceFile], bytes]) -> None:
        self._contents, self._load = contents, load

    def content_of(self, group: PageGroup) -> FileContent:
        """Load the file of a group, and look for its content."""
        try:
            digest = hashlib.blake2b(self._load(group.file), digest_size=DIGEST_BYTES).digest()
        except OcrsvcError:
            return FileContent()
        begin = group.file.pages.index(group.pages[0])
        own = group.indexes[0] - begin
        first = self._contents.add(digest, own)
        if first != own:
            return FileContent(same_as=first)
        return FileContent(digest=None if begin else digest)


class CopySource:
    """Finds the page whose result is copied; for one thread.

    Args:
        plan: Of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._files_of = lru_cache(4)(plan.files_of)

    def find(self, first: int, number: int) -> tuple[int, SourceFile] | None:
        """A page of the file whose first page this is: its number in the plan, and the file.

        None where it is not to be read there. Raises DamagedLedger and OSError.
        """
        file = dict(self._files_of(self._plan.part_of(first))).get(first)
        if file is None or number not in file.pages:
            return None
        return first + file.pages.index(number), file


def copied_result(record: bytes, source: SourceFile, file: SourceFile, number: int, index: int) -> PageResult:
    """The result of a page, from the record of the same page of a file with the same content.

    Args:
        record: That of the page of `source`; it was read without an error.
        source: What the record names.
        file, number, index: The page that it is for: its file, its number there from 1, and in the plan from 0.
    """
    head = record_head(source.name, number)
    assert record.startswith(head), "every record begins with its source and page"
    lines = orjson.loads(record)["lines"]
    confidence = sum(line["confidence"] for line in lines) / max(1, len(lines))
    copy = record_head(file.name, number) + record[len(head) :]
    return PageResult(index, copy, "", False, 0.0, confidence, len(lines), COPIED)
