"""Finds the files that sources name: files, folders, patterns and lists, on this machine and at URLs."""

# Creating a Path for each of a million files would take longer than everything else here.
# ruff: noqa: PTH112, PTH116, PTH118

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

import orjson

from ocrsvc.batch.objects import FILE, StoredObject, is_local, open_file, open_objects, protocol_of
from ocrsvc.batch.sources.source_files import Found, PlanningCounts, path_name
from ocrsvc.errors import BadOption, SourceGone
from ocrsvc.imaging.page_ranges import ACCEPTED, Ranges, parse_ranges

_MAX_ENTRY_BYTES: Final = 1024 * 1024
_STANDARD_INPUT: Final = frozenset({"-", "@-"})
_RUN_FOLDER: Final = "_ocrsvc"
_SPECIAL: Final = re.compile(r"[*?\[]")


def find_all(sources: tuple[str, ...], counts: PlanningCounts, *, only_local: bool = False) -> Iterator[Found]:
    """Yield each file of all sources once; with `only_local`, only local files. Raises SourceGone and BadOption."""
    seen: set[int] = set()
    has_ranges = False
    for source in sources:
        if only_local and (source in _STANDARD_INPUT or not is_local(source.removeprefix("@"))):
            continue
        is_list = _is_list(source)
        for found in _find_listed(source, counts, only_local=only_local) if is_list else _find_source(source, counts):
            has_ranges = has_ranges or found.ranges is not None
            if (key := hash(found.address)) not in seen:
                seen.add(key)
                yield found
            elif has_ranges:
                raise BadOption(f"{found.name} is named twice.", "Name each file once, with all its pages.")
            else:
                counts.named_twice += 1


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches: * and ? stay within a folder, ** spans folders, [abc] is one of these characters."""
    return _match(name.split("/"), pattern.split("/"))


def _match(names: list[str], patterns: list[str]) -> bool:
    if not patterns or not names:
        return not (patterns or names)
    if patterns[0] == "**":
        return len(patterns) == 1 or any(_match(names[at:], patterns[1:]) for at in range(len(names)))
    return fnmatchcase(names[0], patterns[0]) and _match(names[1:], patterns[1:])


def _folder_of(pattern: str) -> str:
    folder, slash, _ = _SPECIAL.split(pattern, maxsplit=1)[0].rpartition("/")
    return folder or slash


def _is_list(source: str) -> bool:
    return source == "-" or source.startswith("@")


def _find_source(source: str, counts: PlanningCounts) -> Iterator[Found]:
    """The files of one source: a file, a folder, a pattern or a URL. Raises SourceGone."""
    if not is_local(source):
        return _find_objects(source, counts)
    path = source.removeprefix(FILE)
    if os.path.isdir(path):
        return _walk(path, counts)
    if _SPECIAL.search(path) and not os.path.lexists(path):
        return _walk(_folder_of(path), counts, path)
    try:
        return iter([_found(path, os.stat(path), is_named=True)])
    except OSError as error:
        what = f"{path_name(path)} cannot be read: {error.strerror}."
        raise SourceGone(what, "Check its name and permissions.") from error


def _walk(top: str, counts: PlanningCounts, pattern: str = "**") -> Iterator[Found]:
    """The files below a folder, depth first, sorted by name. Raises SourceGone if none matches the pattern."""
    stack, is_empty = [(top, True)], pattern != "**"
    while stack:
        path, is_folder = stack.pop()
        try:
            if not is_folder:
                if not matches(path, pattern):
                    continue
                status, is_empty = os.stat(path), False
                if stat.S_ISREG(status.st_mode):
                    yield _found(path, status)
                else:
                    counts.skip("links to folders" if stat.S_ISDIR(status.st_mode) else "devices and pipes")
            elif path == top or "**" in pattern or path.count("/") < pattern.count("/"):
                stack += reversed(_entries(path, counts, is_top=path == top))
        except OSError as error:
            # Plan an unreadable path instead of skipping it; loading the path will report the reason.
            is_empty = False
            problem = f"The folder {path_name(path)} cannot be listed: {error.strerror}." if is_folder else ""
            yield Found(path_name(path), _absolute(path), problem=problem)
    if is_empty:
        raise SourceGone(f"No file matches {path_name(pattern)}.", "Check the pattern; put it in quotes.")


def _entries(folder: str, counts: PlanningCounts, *, is_top: bool) -> list[tuple[str, bool]]:
    """The paths in a folder, sorted, each with whether it is a folder; hidden ones are skipped. Raises OSError."""
    with os.scandir(folder or ".") as listing:
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in listing}
    if found.pop(_RUN_FOLDER, None) is not None:
        counts.skip("folders of a run's own" if is_top else "folders of a run's output")
        found = found if is_top else {}
    names = sorted(name for name in found if not name.startswith("."))
    counts.skip("hidden", len(found) - len(names))
    return [(os.path.join(folder, name), found[name]) for name in names]


def _found(path: str, status: os.stat_result, *, is_named: bool = False) -> Found:
    version = f"{status.st_size}-{status.st_mtime_ns}"
    return Found(path_name(path), _absolute(path), status.st_size, version, is_named=is_named)


def _absolute(path: str) -> str:
    """Make a path absolute, without resolving links; `..` stays, as after a link it means another folder."""
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)  # noqa: PTH109  as above


def _find_objects(source: str, counts: PlanningCounts) -> Iterator[Found]:
    """One object, the objects below a prefix, or those that match a pattern. Raises SourceGone and BadOption."""
    objects, rest = open_objects(source), source.partition("://")[2]
    is_web = protocol_of(source) in ("http", "https")
    is_pattern = not is_web and _SPECIAL.search(rest) is not None
    folder, is_empty = _folder_of(source) if is_pattern else source.rstrip("/"), True
    try:
        if not is_pattern and "/" in rest and not source.endswith("/"):
            try:
                yield _found_object(objects.look_at(source), is_named=True)
                return
            except FileNotFoundError:
                if is_web:
                    raise
        for found in objects.below(folder):
            is_empty = False
            below = found.url.removeprefix(folder)
            if "/." in below or f"/{_RUN_FOLDER}/" in below:
                counts.skip("hidden" if "/." in below else "files of a run's own")
            elif not is_pattern or matches(found.url, source):
                yield _found_object(found)
    except OSError as error:
        reason = error.strerror or error
        raise SourceGone(f"{source} cannot be read: {reason}.", "Check its name and the credentials.") from error
    if is_empty:
        raise SourceGone(f"{folder}/ has no objects.", "Check its name.")


def _found_object(found: StoredObject, *, is_named: bool = False) -> Found:
    return Found(found.url, found.url, found.size, found.version, is_named=is_named)


def _find_listed(source: str, counts: PlanningCounts, *, only_local: bool) -> Iterator[Found]:
    """The files that a list names; a missing file does not stop the planning, but fails when it is read."""
    try:
        with nullcontext(sys.stdin.buffer) if source in _STANDARD_INPUT else open_file(source[1:]) as file:
            data = file.read()
    except OSError as error:
        what = f"The list {path_name(source[1:])} cannot be read: {error.strerror or error}."
        raise SourceGone(what, "Check its name.") from error
    entries = data.split(b"\0") if b"\0" in data else [line.rstrip(b"\r") for line in data.split(b"\n")]
    for number, entry in enumerate(filter(None, entries), 1):
        named, ranges = _parse(entry, f"entry {number} of {path_name(source)}")
        if only_local and not is_local(named):
            continue
        try:
            for found in _find_source(named, counts):
                yield found if ranges is None else replace(found, ranges=ranges)
        except SourceGone:
            # Plan a missing file anyway; loading the file will report the reason.
            address = _absolute(named.removeprefix(FILE)) if is_local(named) else named
            yield Found(path_name(named), address, is_named=True, ranges=ranges)


def _parse(entry: bytes, where: str) -> tuple[str, Ranges | None]:
    """Parse a list's entry: a path, a URL, or a JSON object with `source` and optional `pages`. Raises BadOption."""
    try:
        if len(entry) > _MAX_ENTRY_BYTES:
            raise ValueError(len(entry))
        if not entry.startswith(b"{"):
            return os.fsdecode(entry), None
        values = orjson.loads(entry)
        source, pages = values["source"], values.get("pages")
        if not isinstance(source, str) or not source or _is_list(source) or "\0" in source:
            raise ValueError(source)
        if pages is None:
            return source, None
        numbers = pages if isinstance(pages, list) else [pages]
        ranges = tuple(part for each in numbers for part in parse_ranges(str(each)))
        if not ranges:
            raise ValueError(pages)
        return source, ranges
    except (ValueError, KeyError, TypeError) as error:
        remedy = f'Accepted are a path, a URL, or {{"source": "a.pdf", "pages": "1-3"}} with {ACCEPTED}.'
        raise BadOption(f"{where} is {entry[:80]!r}.", remedy) from error
