"""Finds the files of sources: files, folders, patterns and lists, on this machine and at URLs."""

# A Path for each of a million files costs more than all else here.
# ruff: noqa: PTH109, PTH112, PTH116, PTH118

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, Final

import orjson

from ocrsvc.batch.objects import StoredObject, is_url, open_objects, protocol_of
from ocrsvc.batch.sources.source_files import FoundFile, PlanningCounts, path_name
from ocrsvc.errors import BadOption, SourceGone
from ocrsvc.imaging.page_ranges import ACCEPTED, Ranges, parse_ranges

_PIECE_BYTES: Final = 64 * 1024
_MOST_ENTRY_BYTES: Final = 1024 * 1024
_STANDARD_INPUT: Final = frozenset({"-", "@-"})
_LINES: Final = re.compile(rb"\r?\n")
_RUN_FOLDER: Final = "_ocrsvc"
_FILE: Final = "file://"
_PATTERN: Final = re.compile(r"[*?\[]")
_PIECE: Final = re.compile(r"\[(?P<not>[!^])?(?P<set>\]?[^]]*)\]|(?P<star>\*+)|(?P<one>\?)|(?P<text>.)", re.DOTALL)

Found = tuple[FoundFile, Ranges | None]
"""A file, and which pages of it its list asks for."""


def find_all(sources: tuple[str, ...], counts: PlanningCounts, *, only_local: bool = False) -> Iterator[Found]:
    """The files of all sources, source after source; one that is found again is counted and left out.

    `only_local` leaves out what is not on this machine, and standard input.

    Raises:
        SourceGone: A source is not there.
        BadOption: A list is malformed, or names one file twice with different pages.
    """
    if len(sources) == 1 and not _is_list(sources[0]):
        yield from _find(sources[0], counts, only_local=only_local)
        return
    seen: set[int] = set()
    has_ranges = False
    for source in sources:
        for found, ranges in _find(source, counts, only_local=only_local):
            has_ranges = has_ranges or ranges is not None
            if (key := hash(found.address)) not in seen:
                seen.add(key)
                yield found, ranges
            elif has_ranges:
                raise BadOption(f"{found.name} is named twice.", "Name each file once, with all its pages.")
            else:
                counts.named_twice += 1


def is_local(address: str) -> bool:
    """Whether an address is a path of this machine."""
    return address.startswith(_FILE) or not is_url(address)


def look_at(address: str) -> FoundFile:
    """A file as it is now. Raises OSError, and BadOption for a URL that cannot be read."""
    if not is_local(address):
        return _found_object(open_objects(address).look_at(address))
    path = address.removeprefix(_FILE)
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "It is not a file")
    return _found(path, status)


def open_file(address: str) -> BinaryIO:
    """A file for reading at any place, unbuffered. Raises OSError and BadOption."""
    if not is_local(address):
        return open_objects(address).open(address)
    # Something that is not a file any more, such as a pipe, must not make its reader wait.
    path = address.removeprefix(_FILE)
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)


def pattern_expression(pattern: str) -> re.Pattern[str]:
    """What a pattern matches: * and ? stay within a folder, ** spans folders, [abc] is one of these characters.

    Raises BadOption.
    """
    names = pattern.split("/")
    parts = [
        (".*" if name is names[-1] else "(?:.*/)?") if name == "**" else _name_expression(name) + "/" for name in names
    ]
    text = "".join(parts)
    try:
        return re.compile(text if names[-1] == "**" else text.removesuffix("/"), re.DOTALL)
    except re.error as error:
        raise BadOption(f"The pattern {pattern!r} is wrong: {error}.", "Use *, **, ? and [abc].") from error


def _name_expression(name: str) -> str:
    parts = []
    for match in _PIECE.finditer(name):
        if match["star"]:
            parts.append("[^/]*")
        elif match["one"]:
            parts.append("[^/]")
        elif match["set"]:
            characters = re.sub(r"([\\\[\]^&~|])", r"\\\1", match["set"])
            parts.append(f"(?!/)[{'^' if match['not'] else ''}{characters}]")
        else:
            parts.append(re.escape(match[0]))
    return "".join(parts)


class _Below:
    """A pattern of paths: the folder below which its matches lie, and how many levels deep at most."""

    def __init__(self, text: str) -> None:
        names = text.split("/")
        first = next(number for number, name in enumerate(names) if _PATTERN.search(name))
        self.folder = "/".join(names[:first]) or ("/" if text.startswith("/") else "")
        self.levels = None if "**" in names else len(names) - first
        self.matches = pattern_expression(text).fullmatch


def _is_list(source: str) -> bool:
    return source == "-" or source.startswith("@")


def _find(source: str, counts: PlanningCounts, *, only_local: bool) -> Iterator[Found]:
    if only_local and (source in _STANDARD_INPUT or not is_local(source.removeprefix("@"))):
        return
    if _is_list(source):
        yield from _find_listed(source, counts, only_local=only_local)
    else:
        for found in _find_source(source, counts):
            yield found, None


def _find_source(source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
    """The files of a file's, folder's or pattern's name. Raises SourceGone."""
    if not is_local(source):
        return _find_objects(source, counts)
    path = source.removeprefix(_FILE)
    if os.path.isdir(path):
        return _walk(path, counts, None)
    if _PATTERN.search(path) and not os.path.lexists(path):
        return _find_matching(path, counts)
    try:
        return iter([_found(path, os.stat(path), is_named=True)])
    except OSError as error:
        raise SourceGone(
            f"{path_name(path)} cannot be read: {error.strerror}.", "Check its name and permissions."
        ) from error


def _find_matching(pattern: str, counts: PlanningCounts) -> Iterator[FoundFile]:
    below, found = _Below(pattern), None
    for found in _walk(below.folder, counts, below):
        yield found
    if found is None:
        raise SourceGone(f"No file matches {path_name(pattern)}.", "Check the pattern; put it in quotes.")


def _walk(top: str, counts: PlanningCounts, pattern: _Below | None) -> Iterator[FoundFile]:
    """The files below a folder, depth first; one folder's sorted entries for each level are held."""
    deepest = None if pattern is None else pattern.levels
    levels = [(top, _entries(top, counts))]
    while levels:
        folder, entries = levels[-1]
        try:
            entry = next(entries, None)
        except OSError as error:
            problem = f"The folder {path_name(folder)} cannot be listed: {error.strerror}."
            yield FoundFile(_absolute(folder), path_name(folder), 0, "", problem=problem)
            entry = None
        if entry is None:
            levels.pop()
            continue
        name, is_folder = entry
        path = os.path.join(folder, os.fsdecode(name))
        if is_folder:
            if os.path.lexists(os.path.join(path, _RUN_FOLDER)):
                counts.skip("folders of a run's output")
            elif deepest is None or len(levels) < deepest:
                levels.append((path, _entries(path, counts)))
        elif pattern is None or pattern.matches(path):
            yield from _look_at_found(path, counts)


def _entries(folder: str, counts: PlanningCounts) -> Iterator[tuple[bytes, bool]]:
    """The names in a folder, sorted, and whether they are folders; without hidden ones. Raises OSError."""
    found = []
    with os.scandir(os.fsencode(folder) or b".") as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                counts.skip("hidden")
            elif entry.name == _RUN_FOLDER.encode():
                counts.skip("folders of a run's own")
            else:
                found.append((entry.name, entry.is_dir(follow_symlinks=False)))
    found.sort()
    yield from found


def _look_at_found(path: str, counts: PlanningCounts) -> Iterator[FoundFile]:
    try:
        status = os.stat(path)
    except OSError:
        # Loading it will say why.
        yield FoundFile(_absolute(path), path_name(path), 0, "")
        return
    if stat.S_ISREG(status.st_mode):
        yield _found(path, status)
    else:
        counts.skip("links to folders" if stat.S_ISDIR(status.st_mode) else "devices and pipes")


def _found(path: str, status: os.stat_result, *, is_named: bool = False) -> FoundFile:
    version = f"{status.st_size}-{status.st_mtime_ns}"
    return FoundFile(_absolute(path), path_name(path), status.st_size, version, is_named)


def _absolute(path: str) -> str:
    """Links and .. stay in it, which may not mean what they seem to."""
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)


def _find_objects(source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
    """An object, what lies below a prefix, or what a pattern matches. Raises SourceGone and BadOption."""
    objects, is_web = open_objects(source), protocol_of(source) in ("http", "https")
    pattern = _Below(source) if not is_web and _PATTERN.search(source.partition("://")[2]) else None
    folder, is_empty = (pattern.folder if pattern else source.rstrip("/")), True
    try:
        if pattern is None and not source.endswith("/") and "/" in source.partition("://")[2]:
            try:
                yield _found_object(objects.look_at(source), is_named=True)
                return
            except FileNotFoundError:
                if is_web:
                    raise
        for found in objects.below(folder):
            is_empty = False
            names = found.url[len(folder) + 1 :].split("/")
            if _RUN_FOLDER in names:
                counts.skip("a run's own")
            elif any(name.startswith(".") for name in names):
                counts.skip("hidden")
            elif pattern is None or pattern.matches(found.url):
                yield _found_object(found)
    except OSError as error:
        reason = error.strerror or error
        raise SourceGone(f"{source} cannot be read: {reason}.", "Check its name and the credentials.") from error
    if is_empty:
        raise SourceGone(f"{folder}/ has no objects.", "Check its name.")


def _found_object(found: StoredObject, *, is_named: bool = False) -> FoundFile:
    return FoundFile(found.url, found.url, found.size, found.version, is_named)


def _find_listed(source: str, counts: PlanningCounts, *, only_local: bool) -> Iterator[Found]:
    """The files of a list; what it names and is not there fails, and does not end the planning."""
    with ExitStack() as opened:
        for number, entry in enumerate(_split(_open_list(source, opened)), 1):
            named, ranges = _parse(entry, f"entry {number} of {path_name(source)}")
            if only_local and not is_local(named):
                continue
            try:
                for found in _find_source(named, counts):
                    yield found, ranges
            except SourceGone:
                # Loading it will say why.
                address = _absolute(named.removeprefix(_FILE)) if is_local(named) else named
                yield FoundFile(address, path_name(named), 0, "", is_named=True), ranges


def _open_list(source: str, opened: ExitStack) -> BinaryIO:
    if source in _STANDARD_INPUT:
        return sys.stdin.buffer
    try:
        return opened.enter_context(open_file(source[1:]))
    except OSError as error:
        raise SourceGone(
            f"The list {path_name(source[1:])} cannot be read: {error.strerror or error}.", "Check its name."
        ) from error


def _split(file: BinaryIO) -> Iterator[bytes]:
    """The entries of a list: between NULs where its beginning has one, and lines otherwise. Raises BadOption."""
    rest = piece = file.read(_PIECE_BYTES)
    is_lines = b"\0" not in rest
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
        numbers = pages if isinstance(pages, list) else [pages]
        ranges = None if pages is None else tuple(part for each in numbers for part in parse_ranges(str(each)))
        if ranges == ():
            raise ValueError(pages)
    except (ValueError, KeyError, TypeError) as error:
        raise BadOption(
            f"{where} is {entry[:80]!r}.",
            f'Accepted are a path, a URL, or {{"source": "a.pdf", "pages": "1-3"}} with {ACCEPTED}.',
        ) from error
    return source, ranges
