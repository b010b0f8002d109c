"""The files of all sources as their folders and lists name them, before anything of them is read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, Final

import orjson

from ocrsvc.batch.sources.address_access import access_of
from ocrsvc.batch.sources.file_access import FoundFile
from ocrsvc.batch.sources.name_hashes import NameHashes
from ocrsvc.batch.sources.names import path_name
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.errors import BadOption, SourceGone
from ocrsvc.imaging.page_ranges import ACCEPTED, Ranges, parse_ranges

_PIECE_BYTES: Final = 64 * 1024
_MOST_ENTRY_BYTES: Final = 1024 * 1024
_STANDARD_INPUT: Final = frozenset({"-", "@-"})
_LINES: Final = re.compile(rb"\r?\n")

Found = tuple[FoundFile, Ranges | None]
"""A file, and which pages of it its list asks for."""


def find_all(sources: tuple[str, ...], counts: PlanningCounts, *, only_local: bool = False) -> Iterator[Found]:
    """The files of all sources, source after source; one that is found again is counted and left out.

    Args:
        sources: As the command names them.
        counts: What is left out.
        only_local: Leave out what is not on this machine, and standard input.

    Raises:
        SourceGone: A source is not there.
        BadOption: A list is none, or names one file twice with different pages.
    """
    if len(sources) == 1 and not _is_list(sources[0]):
        yield from _find(sources[0], counts, only_local=only_local)
        return
    seen = NameHashes()
    has_ranges = False
    for source in sources:
        for found, ranges in _find(source, counts, only_local=only_local):
            has_ranges = has_ranges or ranges is not None
            if seen.add(found.address):
                yield found, ranges
            elif has_ranges:
                raise BadOption(f"{found.name} is named twice.", "Name each file once, with all its pages.")
            else:
                counts.named_twice += 1


def _is_list(source: str) -> bool:
    return source == "-" or source.startswith("@")


def _find(source: str, counts: PlanningCounts, *, only_local: bool) -> Iterator[Found]:
    if only_local and (source in _STANDARD_INPUT or not access_of(source.removeprefix("@")).is_local):
        return
    if _is_list(source):
        yield from _find_listed(source, counts, only_local=only_local)
    else:
        for found in access_of(source).find(source, counts):
            yield found, None


def _find_listed(source: str, counts: PlanningCounts, *, only_local: bool) -> Iterator[Found]:
    """The files of a list; what it names and is not there fails, and does not end the planning."""
    with ExitStack() as opened:
        for number, entry in enumerate(_split(_open_list(source, opened)), 1):
            named, ranges = _parse(entry, f"entry {number} of {path_name(source)}")
            access = access_of(named)
            if only_local and not access.is_local:
                continue
            try:
                for found in access.find(named, counts):
                    yield found, ranges
            except SourceGone:
                # Loading it will say why.
                yield FoundFile(access.address_of(named), path_name(named), 0, "", is_named=True), ranges


def _open_list(source: str, opened: ExitStack) -> BinaryIO:
    if source in _STANDARD_INPUT:
        return sys.stdin.buffer
    try:
        return opened.enter_context(access_of(source[1:]).open(source[1:]))
    except OSError as error:
        raise SourceGone(
            f"The list {path_name(source[1:])} cannot be read: {error.strerror or error}.", "Check its name."
        ) from error


def _split(file: BinaryIO) -> Iterator[bytes]:
    """The entries of a list: between NULs where its beginning has one, and lines otherwise. Raises BadOption."""
    rest = file.read(_PIECE_BYTES)
    is_lines = b"\0" not in rest
    piece = rest
    while piece:
        *entries, rest = _LINES.split(rest) if is_lines else rest.split(b"\0")
        yield from filter(None, entries)
        if len(rest) > _MOST_ENTRY_BYTES:
            raise BadOption("The list has an entry of more than 1 MiB.", "Name one file in each line.")
        piece = file.read(_PIECE_BYTES)
        rest += piece
    if rest.strip(b"\r"):
        yield rest.rstrip(b"\r") if is_lines else rest


def _parse(entry: bytes, where: str) -> tuple[str, Ranges | None]:
    """Source and pages of an entry: a path or URL, or a JSON object with source and perhaps pages. Raises BadOption."""
    if not entry.startswith(b"{"):
        return os.fsdecode(entry), None
    try:
        values = orjson.loads(entry)
        source, pages = values["source"], values.get("pages")
        if not isinstance(source, str) or not source or _is_list(source) or "\0" in source:
            raise ValueError(source)
        return source, None if pages is None else _ranges_of(pages)
    except (ValueError, KeyError, TypeError) as error:
        raise BadOption(
            f"{where} is {entry[:80]!r}.",
            f'Accepted are a path, a URL, or {{"source": "a.pdf", "pages": "1-3"}} with {ACCEPTED}.',
        ) from error


def _ranges_of(pages: object) -> Ranges:
    """Ranges such as "1-3,7", a number, or a list of numbers. Raises ValueError."""
    numbers = pages if isinstance(pages, list) else [pages]
    if not numbers:
        raise ValueError(pages)
    return tuple(part for number in numbers for part in parse_ranges(str(number)))
