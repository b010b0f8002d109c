"""Makes of each file that was found what is planned of it: itself, the images in it, or one page that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ocrsvc.batch.sources.address_access import access_of
from ocrsvc.batch.sources.archive import Member
from ocrsvc.batch.sources.archive_kinds import archive_kind, open_archive
from ocrsvc.batch.sources.file_access import FoundFile
from ocrsvc.batch.sources.linked_files import linked_address, problem_of_linked
from ocrsvc.batch.sources.loading import FAILURE, LINKED, SourceLoader
from ocrsvc.batch.sources.locator import Locator
from ocrsvc.batch.sources.page_count import (
    DOCUMENTS,
    HEAD_BYTES,
    count_pages,
    extension_of,
    is_image_head,
    is_image_name,
    kind_of,
)
from ocrsvc.batch.sources.path_patterns import pattern_expression
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.source_request import SourceRequest
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import BadOption, BrokenArchive, CallerError, SourceGone
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, Ranges, choose, parse_ranges

_FIRST: Final = range(1, 2)
# Archives may say any size, and the plan's sum of ten million of them has 64 bits.
_MOST_SAID_BYTES: Final = 1 << 40


class FilePlanner:
    """Plans files, in one thread; `close` it.

    Args:
        request: What is asked for.
        counts: What is not planned.

    Raises:
        BadOption: Pages or patterns are none.
    """

    def __init__(self, request: SourceRequest, counts: PlanningCounts) -> None:
        self._counts, self._column = counts, request.column
        self._loader = SourceLoader(request.most_file_bytes)
        self._most_bytes = request.most_file_bytes
        self._ranges = _ranges_of(request.pages)
        self._include = [_name_expression(pattern) for pattern in request.include]
        self._exclude = [_name_expression(pattern) for pattern in request.exclude]

    def close(self) -> None:
        """Close what is open."""
        self._loader.close()

    def count_pages(self, found: FoundFile) -> int:
        """The pages of a file that is a document by its name, as `plan` takes them; for any thread."""
        return self._count(Locator(found.address), found, found.address, found.size, b"")

    def plan(self, found: FoundFile, ranges: Ranges | None, total: int | None = None) -> Iterator[SourceFile]:
        """What is planned of a file.

        Args:
            found: The file.
            ranges: Which pages of each document; None is what the command asks for.
            total: Its pages, if they were counted.
        """
        ranges = self._ranges if ranges is None else ranges
        kind = archive_kind(found.name)
        if found.problem:
            yield self._failure(found.name, Locator(found.address, FAILURE, found.problem), "")
        elif kind:
            yield from self._plan_archive(found, kind, ranges)
        elif self._is_wanted(found.name):
            yield from self._plan_file(found, Locator(found.address), ranges, total)

    def _plan_file(
        self, found: FoundFile, locator: Locator, ranges: Ranges, total: int | None = None
    ) -> Iterator[SourceFile]:
        head = self._read_head(found)
        if head is None:
            # What cannot be read is not skipped: it may be an image. Its version is not known, nor compared.
            yield self._failure(found.name, locator, "")
        elif found.is_named or is_image_name(found.name) or is_image_head(head):
            pages = self._count(locator, found, found.address, found.size, head) if total is None else total
            yield from self._chosen(found.name, locator, found.version, found.size, pages, ranges)
        else:
            self._counts.skip(kind_of(found.name))

    def _read_head(self, found: FoundFile) -> bytes | None:
        """The first bytes of a file; none where they are not worth reading, None where they cannot be read."""
        access = access_of(found.address)
        if not access.is_local and is_image_name(found.address):
            return b""
        try:
            with access.open(found.address) as file:
                return file.read(HEAD_BYTES)
        except OSError:
            return None

    def _plan_archive(self, found: FoundFile, kind: str, ranges: Ranges) -> Iterator[SourceFile]:
        try:
            archive = open_archive(kind, found.address, self._column)
            try:
                for member in archive.members():
                    yield from self._plan_member(found, kind, member, ranges)
            finally:
                archive.close()
        except OSError as error:
            yield self._broken(found, f"{found.name} cannot be read: {error.strerror or error}.")
        except BrokenArchive as error:
            yield self._broken(found, f"{found.name}: {error.detail}")

    def _plan_member(self, found: FoundFile, kind: str, member: Member, ranges: Ranges) -> Iterator[SourceFile]:
        if member.path:
            yield from self._plan_linked(found, member, ranges)
            return
        name = found.name + member.name
        if not self._is_wanted(name):
            return
        head = member.head or b""
        if not (member.is_image or is_image_name(name) or is_image_head(head)):
            self._counts.skip(kind_of(member.name))
        elif member.problem:
            detail = f"{name}: {member.problem}"
            yield self._failure(name, Locator(found.address, FAILURE, detail), found.version)
        else:
            locator = Locator(found.address, kind, member.place)
            total = self._count(locator, found, name, member.size, head)
            yield from self._chosen(name, locator, found.version, member.size, total, ranges)

    def _plan_linked(self, table: FoundFile, member: Member, ranges: Ranges) -> Iterator[SourceFile]:
        """What is planned of a file that a table names: it is called by its row, so that rows may name one file."""
        name, address = table.name + member.name, linked_address(table.address, member.path)
        if not self._is_wanted(address):
            return
        # Whoever made the table must not choose what else of this machine and its network is read.
        if problem := problem_of_linked(table.address, address, may_lead_away=self._column is not None):
            yield self._failure(name, Locator(table.address, FAILURE, f"{name}: {problem}"), table.version)
            return
        locator = Locator(address, LINKED, table.address)
        try:
            now = access_of(address).look_at(address)
        except OSError:
            yield self._failure(name, locator, "")
            return
        except BadOption as error:
            yield self._failure(name, Locator(table.address, FAILURE, f"{name}: {error.detail}"), table.version)
            return
        file = FoundFile(address, name, now.size, now.version, is_named=True)
        yield from self._plan_file(file, locator, ranges)

    def _count(self, locator: Locator, found: FoundFile, name: str, size: int, head: bytes) -> int:
        """The pages of a file; 0 of a document that is too large or cannot be opened, which reading it will say.

        Raises ResourcesExhausted.
        """
        may_have = may_have_pages(head) if head else extension_of(name) in DOCUMENTS
        if not may_have:
            return 1
        if size > self._most_bytes:
            return 0
        try:
            return count_pages(self._loader.load(locator, name, found.version))
        except (SourceGone, CallerError):
            return 0

    def _chosen(
        self, name: str, locator: Locator, version: str, size: int, total: int, ranges: Ranges
    ) -> Iterator[SourceFile]:
        is_first = not total or (total == 1 and ranges == ALL)
        pages = _FIRST if is_first else choose(ranges, total)
        if pages:
            numbers = pages if isinstance(pages, range) else tuple(pages)
            yield SourceFile(name, locator.to_text(), version, min(size, _MOST_SAID_BYTES), total, numbers)
        else:
            self._counts.without_pages += 1

    def _broken(self, found: FoundFile, detail: str) -> SourceFile:
        self._counts.first_unreadable = self._counts.first_unreadable or detail.rstrip(".")
        return self._failure(found.name, Locator(found.address, FAILURE, detail), found.version)

    def _failure(self, name: str, locator: Locator, version: str) -> SourceFile:
        self._counts.unreadable += 1
        return SourceFile(name, locator.to_text(), version, 0, 0, _FIRST)

    def _is_wanted(self, name: str) -> bool:
        if any(expression.fullmatch(name) for expression in self._exclude) or (
            self._include and not any(expression.fullmatch(name) for expression in self._include)
        ):
            self._counts.left_out += 1
            return False
        return True


def _name_expression(pattern: str) -> re.Pattern[str]:
    """A pattern without a slash is one of the name alone, wherever the file is."""
    return pattern_expression(pattern if "/" in pattern else f"**/{pattern}")


def _ranges_of(text: str | None) -> Ranges:
    try:
        return ALL if text is None else parse_ranges(text)
    except ValueError as error:
        raise BadOption(f"--pages is {text!r}: accepted are {ACCEPTED}.") from error
