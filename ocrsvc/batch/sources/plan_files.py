"""Plans the pages to read: of files, archives and tables. An unreadable file becomes a page that fails."""

import heapq
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ocrsvc.batch.objects import StoredObject, is_local, look_at, open_file
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.plan import write_plan
from ocrsvc.batch.request import SourceRequest
from ocrsvc.batch.sources.find_files import find_all, matches
from ocrsvc.batch.sources.load_files import FAILURE, LINKED, SourceLoader, count_pages
from ocrsvc.batch.sources.source_files import DOCUMENTS, HEAD_BYTES, Found, PlanningCounts, extension_of
from ocrsvc.errors import BadOption, BrokenArchive, CallerError, RunChanged, SourceGone
from ocrsvc.imaging.codecs.decode import FORMATS
from ocrsvc.imaging.document import is_pdf, may_have_pages
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, choose, parse_ranges

_IMAGES: Final = re.compile("jpe?g|jpe|jfif|a?png|webp|gif|bmp|dib|p[bgnp]m|avif|hei[cf]|jp2|jpx|jxl|pdf|tiff?")
"""File extensions of images, also in unsupported formats: such a file fails visibly instead of being skipped."""
_PACKED_TARS: Final = "(?P<packed_tar>tar[.](gz|bz2|xz|zst)|tgz|tbz2?|txz|tzst)"
_ARCHIVES: Final = re.compile(f"(?si).*[.]({_PACKED_TARS}|(?P<tar>tar)|(?P<zip>zip|cbz)|(?P<parquet>parquet))")
_FIRST: Final = range(1, 2)
# Larger sizes are cut to this, because an archive may state any number as a member's size.
_MAX_SIZE_BYTES: Final = 1 << 40
# Few threads, because each holds a document of up to 64 MiB, and its child process a copy.
_MAX_THREADS: Final = 4
_AHEAD: Final = 64
_SAMPLE: Final = re.compile(r"(?P<share>\d{1,3}(\.\d{1,9})?)%|(?P<count>\d{1,12})")
_MAX_EXAMPLES: Final = 3


def find_sources(
    request: SourceRequest, counts: PlanningCounts, planned: Iterable[SourceFile] = ()
) -> Iterator[SourceFile]:
    """Plan the files of all sources in output order, except those in `planned`. Raises SourceGone and BadOption."""
    known = {key for key, _, _ in _versions(planned)}
    with closing(_Planner(request, counts)) as planner:
        found = find_all(request.sources, counts)
        files = planner.plan_all(each for each in found if hash(each.address) not in known)
        if request.sample is not None:
            files = _sampled(files, request.sample, request.seed, counts)
        if not request.is_sorted:
            yield from files
            return
        # Sort by name in a temporary SQLite file instead of in memory.
        with TemporaryDirectory() as folder, closing(write_plan(Path(folder, "all"), files, 500)) as plan:
            yield from plan.all_files("name")


class _Planner:
    """Chooses the files and pages to read; not thread-safe; the owner must `close` it. Raises BadOption."""

    def __init__(self, request: SourceRequest, counts: PlanningCounts) -> None:
        self._request, self._counts = request, counts
        self._loader = SourceLoader(request.max_file_bytes)
        self.close = self._loader.close
        try:
            self._ranges = ALL if request.pages is None else parse_ranges(request.pages)
        except ValueError as error:
            raise BadOption(f"--pages is {request.pages!r}: accepted are {ACCEPTED}.") from error

    def plan_all(self, files: Iterable[Found]) -> Iterator[SourceFile]:
        """Plan files in order; threads count the pages of several documents at once."""
        rest, threads = iter(files), min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, thread_name_prefix="batch-plan") as pool:
            while some := list(islice(rest, _AHEAD)):
                for found, total in zip(some, pool.map(self._count_named, some), strict=True):
                    yield from self.plan(found, total)

    def plan(self, found: Found, total: int | None = None) -> Iterator[SourceFile]:
        """Plan a file or an archive's members, with the pages selected in the list of files or on the command line."""
        if found.problem:
            yield self._failure(found)
        elif archive := _ARCHIVES.fullmatch(found.name):
            kind = next(kind for kind, end in archive.groupdict().items() if end)
            yield from self._plan_archive(replace(found, kind=kind))
        else:
            yield from self._plan(found, total)

    def _plan_archive(self, archive: Found) -> Iterator[SourceFile]:
        """Plan the members of an archive or a table; if reading it fails, add a page that will fail."""
        try:
            with closing(self._loader.open(archive.kind, archive.address, self._request.column)) as opened:
                for member in opened.members(archive):
                    yield from self._plan(self._linked(archive, member) if member.path else member)
            return
        except OSError as error:
            detail = f"{archive.name} cannot be read: {error.strerror or error}."
        except BrokenArchive as error:
            detail = f"{archive.name}: {error.detail}"
        self._counts.first_unreadable = self._counts.first_unreadable or detail.rstrip(".")
        yield self._failure(replace(archive, problem=detail))

    def _linked(self, table: Found, row: Found) -> Found:
        """The file that a table's row names; it gets the row's name, because several rows may name the same file."""
        is_trusted, is_whole = self._request.column is not None, "://" in row.path or row.path.startswith("/")
        address = row.path if is_whole else f"{table.address.rpartition('/')[0]}/{row.path}"
        try:
            # An untrusted table must not make this machine read arbitrary files or URLs.
            if not (is_trusted or is_below(table.address.rpartition("/")[0], address)):
                raise BadOption(
                    "It names a file outside the table's folder: name the column with the paths by --column."
                )
            if not is_trusted and is_local(address):
                # Resolve links now, so that changing a link after this check has no effect.
                address = str(Path(address).resolve())
            now = look_at(address)
        except OSError:
            now = StoredObject(address, 0, "")
        except (BadOption, ValueError) as error:
            return replace(row, problem=f"{row.name}: {getattr(error, 'detail', 'The path that it names has a NUL.')}")
        found = replace(row, address=address, size=now.size, version=now.version, head=None, is_named=True)
        return replace(found, kind=LINKED, place=table.address, path="")

    def _plan(self, found: Found, total: int | None = None) -> Iterator[SourceFile]:
        name, include = found.address if found.kind == LINKED else found.name, self._request.include
        if (include and not _matches_any(name, include)) or _matches_any(name, self._request.exclude):
            self._counts.left_out += 1
            return
        head = _read_head(found) if found.head is None and not found.problem else found.head or b""
        if head is None:
            # An unreadable file may be an image, so plan it as a page that fails; "" for its unknown version.
            self._counts.unreadable += 1
            yield SourceFile(found.name, found.address, "", 0, 0, _FIRST, found.kind, found.place)
        elif not (
            found.is_named or is_image_name(found.name) or is_pdf(head) or any(f.match(head) for f, _ in FORMATS)
        ):
            extension = extension_of(found.name)
            self._counts.skip(f".{extension[:16]}" if extension else "no extension")
        elif found.problem:
            yield self._failure(found)
        else:
            yield from self._chosen(found, self._count(found, head) if total is None else total)

    def _count_named(self, found: Found) -> int | None:
        """Count the pages of a file whose extension is one of DOCUMENTS; None for other files."""
        is_document = extension_of(found.name) in DOCUMENTS and not found.problem
        return self._count(found, b"") if is_document else None

    def _count(self, found: Found, head: bytes) -> int:
        """Count a file's pages. 0 if a document is too large or cannot be opened: reading it will report the error."""
        if not (may_have_pages(head) if head else extension_of(found.name) in DOCUMENTS):
            return 1
        if found.size > self._request.max_file_bytes:
            return 0
        try:
            return count_pages(self._loader.load(found))
        except (SourceGone, CallerError):
            return 0

    def _chosen(self, found: Found, total: int) -> Iterator[SourceFile]:
        ranges = self._ranges if found.ranges is None else found.ranges
        pages = choose(ranges, total) if total > 1 or (total and ranges != ALL) else _FIRST
        if pages:
            numbers = pages if isinstance(pages, range) else tuple(pages)
            size = min(found.size, _MAX_SIZE_BYTES)
            yield SourceFile(found.name, found.address, found.version, size, total, numbers, found.kind, found.place)
        else:
            self._counts.without_pages += 1

    def _failure(self, found: Found) -> SourceFile:
        self._counts.unreadable += 1
        return SourceFile(found.name, found.address, found.version, 0, 0, _FIRST, FAILURE, found.problem)


def is_below(folder: str, address: str) -> bool:
    """Whether a file is below a folder, after resolving local links. Raises ValueError for a NUL in the address."""
    scheme, _, rest = address.rpartition("://")
    above, _, below = folder.rpartition("://")
    if scheme != above:
        return False
    if not scheme:
        return Path(rest).resolve().is_relative_to(Path(f"{below}/").resolve())
    return posixpath.normpath(rest).startswith(f"{posixpath.normpath(below)}/")


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether any pattern matches; a pattern without a slash is compared with the last component of the name only."""
    return any(matches(name if "/" in pattern else name.rpartition("/")[2], pattern) for pattern in patterns)


def is_image_name(name: str) -> bool:
    """Whether a name has the extension of an image or a PDF."""
    return _IMAGES.fullmatch(extension_of(name)) is not None


def _read_head(found: Found) -> bytes | None:
    """A file's first bytes; None on errors. b"" for a remote file with an image's extension, which saves a request."""
    address = found.address
    if not found.version:
        return None
    if not is_local(address) and is_image_name(address):
        return b""
    try:
        with open_file(address) as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return None


def _sampled(files: Iterable[SourceFile], text: str, seed: int, counts: PlanningCounts) -> Iterator[SourceFile]:
    """Yield files with only the pages that --sample selects: a number (in memory) or a share. Raises BadOption."""
    match = _SAMPLE.fullmatch(text)
    share = float(match["share"]) / 100 if match and match["share"] else None
    if match is None or (share or 0) > 1 or not (share or int(match["count"] or 0)):
        raise BadOption(f"--sample is {text!r}: accepted are a number of pages from 1, or a share such as 2.5%.")

    def pages() -> Iterator[tuple[int, int, int, SourceFile]]:
        for order, file in enumerate(files):
            counts.not_sampled += len(file.pages)
            yield from ((_hash(file.name, number, seed), order, number, file) for number in file.pages)

    if share is None:
        chosen = iter(sorted(heapq.nsmallest(int(match["count"]), pages()), key=itemgetter(1, 2)))
    else:
        limit = round(share * (1 << 64))
        chosen = (page for page in pages() if page[0] < limit)
    for _, group in groupby(chosen, key=itemgetter(1)):
        *_, (_, _, _, file) = taken = list(group)
        counts.not_sampled -= len(taken)
        is_whole = len(taken) == len(file.pages)
        yield file if is_whole else replace(file, pages=tuple(number for _, _, number, _ in taken))


def _hash(name: str, number: int, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed} {number} {name}".encode(), digest_size=8).digest(), "big")


def check_unchanged(
    planned: Iterable[SourceFile], request: SourceRequest, address: str, *, may_grow: bool = False
) -> None:
    """Compare the files with the plan. Raises RunChanged with the number of files that differ, and SourceGone.

    Object stores (listing takes minutes) and standard input are not checked: a changed object fails when it is read.
    """
    known = {key: version for key, version, is_here in _versions(planned) if is_here}
    changes, examples, counts = Counter(new=0, changed=0, missing=0), list[str](), PlanningCounts()
    with closing(_Planner(request, counts)) as planner:
        for found in find_all(request.sources, counts, only_local=True):
            version = known.pop(hash(found.address), None)
            if version in (0, hash(found.version)):
                continue
            if version is None and (may_grow or request.sample or next(planner.plan(found), None) is None):
                continue
            changes["new" if version is None else "changed"] += 1
            examples += [found.name][: _MAX_EXAMPLES - len(examples)]
    changes["missing"] += len(known)
    if changes.total():
        names = f", such as {', '.join(examples)}" if examples else ""
        shown = ", ".join(f"{count} {what}" for what, count in changes.items() if count)
        update = "Add new files with --update, c" if changes["new"] else "C"
        raise RunChanged(
            f"Files have changed since the run in {address} was planned: {shown}{names}.",
            f"{update}ontinue whatever has changed with --as-planned, or choose another destination.",
        )


def _versions(planned: Iterable[SourceFile]) -> Iterator[tuple[int, int, bool]]:
    """For each planned file: hash of its address, hash of its version (0 if unknown), and whether it is local."""
    for file in planned:
        is_linked = file.kind == LINKED
        address = file.place if is_linked else file.address
        yield hash(address), hash(file.version) if file.version and not is_linked else 0, is_local(address)
