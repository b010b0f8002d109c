"""Formats with one file per source (text, hOCR, ALTO, TSV, searchable PDF), and a list of these files per part."""

import hashlib
import logging
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from tempfile import TemporaryFile
from typing import Any, Final

import orjson

from ocrsvc.batch.destination import Destination, HashedFile, WrittenFile
from ocrsvc.batch.human_readable import visible
from ocrsvc.batch.pages import FileResults
from ocrsvc.batch.sources.plan_files import is_image_name
from ocrsvc.client.response import page_of
from ocrsvc.errors import BrokenImage, CallerError, SourceGone
from ocrsvc.formats.document import text_parts
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.searchable import NumberedText, add_pictures, lay_over_pages
from ocrsvc.formats.pdf.text_lines import PageText, text_of
from ocrsvc.imaging.document import is_pdf
from ocrsvc.plugins import OutputFormat, text_formats
from ocrsvc.results import EngineInfo, Page, no_check

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_PDF_LIMIT_S: Final = 60.0
_PDF_LIMIT_OF_PAGE_S: Final = 0.5
# Subfolder for the lists; programs that read data folders skip names that begin with an underscore.
_LISTS: Final = "_files/"
_OF_PAGE: Final = ("page", "width", "height", "angle", "text", "lines")

WriteFile = Callable[[FileResults, HashedFile], object]
"""Writes the file of one source. Raises CallerError or SourceGone if that is impossible, and OSError."""


def source_file_writer(name: str, folder: str, reader: Mapping[str, str], root: str) -> Callable[..., WrittenFile]:
    """Make the writer of a format with one file per source. `reader` describes the engine; `root` is cut off names."""
    engine = EngineInfo(reader["engine"], reader["model"], reader["version"], "", "", "")
    form = text_formats().get(name)
    write_file, ending = (partial(_write_text, form, engine), form.suffix) if form else (_write_pdf, _PDF)
    return partial(_write_part, name, folder, lambda source: source_path(source.removeprefix(root), ending), write_file)


def is_listing(name: str) -> bool:
    """Whether an output file is a list of the files written for sources."""
    return f"/{_LISTS}" in f"/{name}"


def _write_part(
    name: str,
    folder: str,
    path_of: Callable[[str], str],
    write_file: WriteFile,
    destination: Destination,
    part: int,
    files: Iterator[FileResults],
    *,
    replace: bool,
) -> WrittenFile:
    """Write a file for each source that has results, and a list of these files; the manifest names the list.

    The list has a line of JSON per source: `source`, and either `file`, `bytes` and `sha256`, or `error`.
    """
    with destination.writing(f"{folder}{_LISTS}{name}-{part:05d}.jsonl", replace=replace) as listing:
        for results in files:
            if not results.pages:
                continue
            source = results.file.name
            try:
                with destination.writing(folder + path_of(source), replace=replace) as output:
                    write_file(results, output)
                row = dict(zip(("file", "bytes", "sha256"), output.written(), strict=True))
            except (CallerError, SourceGone) as error:
                LOGGER.warning("%s has no file in the format %s: %s", visible(source), name, visible(str(error)))
                row = {"error": {"code": error.code, "detail": error.detail, "remedy": error.remedy}}
            listing.write(orjson.dumps({"source": source} | row) + b"\n")
    return listing.written()


def _write_text(form: OutputFormat, engine: EngineInfo, results: FileResults, output: HashedFile) -> None:
    pages = (_page_of(orjson.loads(results.record(number))) for number in results.pages)
    for part in text_parts(form, pages, len(results.pages), engine):
        output.write(part.encode(errors="replace"))


def _page_of(record: dict[str, Any]) -> Page:
    """Convert a JSON record to a page; a failed page becomes an empty one."""
    known = {"width": 0, "height": 0, "angle": 0} | record
    return page_of({name: known[name] for name in _OF_PAGE}).record()


def _write_pdf(results: FileResults, output: HashedFile) -> None:
    data = results.load()
    if not is_pdf(data):
        pdf = ImagePdf(output)
        if failure := add_pictures(pdf, data, _texts_of(results), no_check):
            raise failure
        pdf.finish()
        return
    with TemporaryFile() as file:
        file.write(data)
        # Free the memory of a large PDF early: the temporary file has the data now.
        del data
        file.flush()
        limit_s = _PDF_LIMIT_S + _PDF_LIMIT_OF_PAGE_S * results.file.total
        texts = (text for _, text in _texts_of(results, is_over_own=True) if isinstance(text, PageText))
        lay_over_pages(file, texts, output, limit_s, no_check)


def _texts_of(results: FileResults, *, is_over_own: bool = False) -> Iterator[NumberedText]:
    """Yield each page's number with its text or error; `is_over_own` omits text that the PDF already contains."""
    for number in results.pages:
        record = orjson.loads(results.record(number))
        failed = record["error"]
        text = text_of(_page_of(record), is_over_own=is_over_own) if failed is None else BrokenImage(failed["detail"])
        yield number, text


_PDF: Final = ".pdf"
ENDINGS: Final = (".txt", ".tsv", ".hocr", ".alto.xml", _PDF)
"""Endings added to a source's name to make the name of its output file."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+[A-Za-z0-9.+-]*)?://")
# Characters to escape as %XX: those that Windows or shells do not accept, and "%"; "/" separates folders.
_UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f"%*:<>?\\|\ud800-\udfff]')
# Characters to escape only at the start or end of a name, for example so that no file is named like the folders
# `_ocrsvc`, `_files` and `unfinished` of the destination.
_UNSAFE_ENDS: Final = re.compile(
    r"\A(?:[@. ]|_(?=(?i:ocrsvc|files)\Z)|[uU](?=(?i:nfinished)\Z))|[. ]\Z|~(?=[0-9a-f]{16}\Z)"
)
# The dot of these endings is escaped in folder names, so that no folder has the name of an output file.
_FILE_ENDINGS: Final = re.compile(
    rf"\.(?=(?:{'|'.join(re.escape(ending[1:]) for ending in ENDINGS)}|html|jsonl|jsonl\.gz|parquet)\Z)", re.IGNORECASE
)
_LONGEST_PART_BYTES: Final = 200
_LONGEST_BYTES: Final = 800
_DIGITS: Final = 16


def common_folder(sources: Sequence[str]) -> str:
    """The deepest folder that contains all sources, with a slash at its end; "" unless all are absolute paths."""
    if not all(source.startswith("/") for source in sources):
        return ""
    fixed = (re.split(r"[*?[]", source.rstrip("/"))[0] or "/" for source in sources)
    return posixpath.commonpath(map(posixpath.dirname, fixed)).rstrip("/") + "/"


def source_path(name: str, ending: str) -> str:
    """Path of a source's output file in the destination; `name` is the source's name, `ending` one of ENDINGS."""
    first, rest = [], name
    if found := _SCHEME.match(name):
        first, rest = [f"@{_UNSAFE.sub(_quoted, name[: found.end() - 3])}"], name[found.end() :]
    elif name.startswith("/"):
        first, rest = ["@root"], name[1:]
    *folders, last = rest.split("/")
    parts = [*first, *(_FILE_ENDINGS.sub("%2E", _safe(folder)) for folder in folders)]
    parts = [_shortened(part, part) for part in parts]
    stem, dot, suffix = last.rpartition(".")
    if ending == _PDF == f"{dot}{suffix}".lower() and not is_image_name(stem):
        last, ending = stem, dot + suffix
    elif ending == _PDF and not is_image_name(last):
        # `a.pdf` is the output of a source `a.pdf`, so a source `a` gets `a%.pdf`; no escaped name ends with "%.pdf".
        ending = f"%{_PDF}"
    path = "/".join([*parts, _shortened(_safe(last), name) + ending])
    if len(path.encode()) <= _LONGEST_BYTES:
        return path
    return f"@long/{_shortened(_safe(last), name, always=True)}{ending}"


def _safe(part: str) -> str:
    """Escape the unsafe characters of one path component with percent signs."""
    known = {"": "@", ".": "@@", "..": "@up"}.get(part)
    return known or _UNSAFE_ENDS.sub(_quoted, _UNSAFE.sub(_quoted, part))


def _quoted(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _shortened(part: str, whole: str, *, always: bool = False) -> str:
    """Cut a path component that is too long for file systems, and add a digest of `whole` to keep it unique."""
    data = part.encode()
    if len(data) <= _LONGEST_PART_BYTES and not always:
        return part
    kept = data[: _LONGEST_PART_BYTES - 1 - _DIGITS].decode(errors="ignore")
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{kept}~{digest}"
