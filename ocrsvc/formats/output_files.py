"""The output files of recognized documents: one per format, their names, and all of them as one zip."""

import re
import unicodedata
import zipfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Final
from urllib.parse import quote

from ocrsvc.formats.document import DocumentResult, Output, page_without_words, write_document
from ocrsvc.imaging.document import is_pdf
from ocrsvc.plugins import output_formats
from ocrsvc.results import Check, Page

JSON: Final = "json"
PDF: Final = "pdf"
PDF_TYPE: Final = "application/pdf"
JSON_TYPE: Final = "application/json"
ZIP_TYPE: Final = "application/zip"
UNNAMED: Final = "document"
_MAX_NAME_BYTES: Final = 150
_MAX_SENT_CHARACTERS: Final = 1000
_PATH_SEPARATORS: Final = re.compile(r"[/\\]")
# Characters that Windows forbids in file names.
_REFUSED: Final = re.compile(r'[<>:"|?*]')
# Names of devices, which Windows reserves with any extension.
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
# Unicode categories to remove from names: control, format (may reverse text), surrogate, private, unassigned, breaks.
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

# The earliest date that a zip can have; fixed, so that equal results give equal bytes.
_ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class NamedResult:
    """A recognized document, and the file name that the client sent, "" for none."""

    name: str
    result: DocumentResult


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to write: its safe file name, its Content-Type, and the function that writes it."""

    name: str
    media_type: str
    write: Callable[[Output, float, Check], object]


def files_of(
    formats: Sequence[str], documents: Sequence[NamedResult], as_json: Callable[[], bytes], *, words: bool
) -> list[OutputFile]:
    """The output files of one or more documents in these formats.

    Several documents become one file per format, with continuous page numbers; but if any is a PDF, each document gets
    its own searchable PDF. `as_json` makes the file of the format "json"; with `words`, text formats contain words, as
    searchable PDFs always do.
    """
    stem = _stem_of(documents)
    if words:
        without_words = documents
    else:
        without_words = [replace(document, result=_without_words(document.result)) for document in documents]
    by_format = ((name, documents if name == PDF else without_words) for name in formats)
    return [file for name, results in by_format for file in _files_of(name, stem, results, as_json)]


def zip_name(documents: Sequence[NamedResult]) -> str:
    """The name of the zip with the files of these documents."""
    return f"{_stem_of(documents)}.zip"


def write_zip(files: Sequence[OutputFile], output: IO[bytes], limit_s: float, check: Check) -> None:
    """Write a zip of these files, with only JSON files held in memory. Raises the writers' errors, and OSError."""
    with zipfile.ZipFile(output, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, _ZIP_DATE)
            # A PDF's streams are already compressed.
            entry.compress_type = zipfile.ZIP_STORED if file.media_type == PDF_TYPE else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as member:
                file.write(member, limit_s, check)


def _stem_of(documents: Sequence[NamedResult]) -> str:
    return stem_of(documents[0].name) if len(documents) == 1 else UNNAMED


def _files_of(
    name: str, stem: str, documents: Sequence[NamedResult], as_json: Callable[[], bytes]
) -> Iterator[OutputFile]:
    if name == JSON:
        yield OutputFile(f"{stem}.json", JSON_TYPE, lambda output, _limit_s, _check: output.write(as_json()))
        return
    form = output_formats()[name]
    results = [document.result for document in documents]
    if len(documents) > 1 and form.writer and any(is_pdf(result.file) for result in results):
        digits = len(str(len(documents)))
        for number, document in enumerate(documents, start=1):
            file_name = f"{number:0{digits}}-{stem_of(document.name)}{form.suffix}"
            yield OutputFile(file_name, form.media_type, partial(write_document, name, document.result))
    elif len(documents) > 1 and form.writer:
        yield OutputFile(stem + form.suffix, form.media_type, partial(_write_images, results))
    else:
        yield OutputFile(stem + form.suffix, form.media_type, partial(write_document, name, _joined(results)))


@dataclass(frozen=True, slots=True)
class _Pages:
    iterate: Callable[[], Iterator[Page]]

    def __iter__(self) -> Iterator[Page]:
        return self.iterate()


def _without_words(result: DocumentResult) -> DocumentResult:
    return replace(result, pages=_Pages(lambda: map(page_without_words, result.pages)))


def _joined(results: Sequence[DocumentResult]) -> DocumentResult:
    """Join documents into one with continuous page numbers, which count failed pages, too."""
    if len(results) == 1:
        return results[0]

    def numbered() -> Iterator[Page]:
        before = 0
        for result in results:
            failed = sorted(result.failed)
            for at, page in enumerate(result.pages, start=1):
                yield replace(page, number=before + at + bisect_left(failed, page.number))
            before += result.count + len(failed)

    return replace(results[0], pages=_Pages(numbered), count=sum(result.count for result in results))


def _write_images(results: Sequence[DocumentResult], output: Output, limit_s: float, check: Check) -> None:
    # Imported here because it loads image codecs, which other formats do not need.
    from ocrsvc.formats.pdf.searchable import write_images

    write_images(results, output, limit_s, check)


def stem_of(file_name: str) -> str:
    """Make a safe stem for output files from a sent file name, without folders and extension; "document" for none."""
    name = unicodedata.normalize("NFC", _PATH_SEPARATORS.split(file_name[-_MAX_SENT_CHARACTERS:])[-1])
    visible = "".join(character for character in name if unicodedata.category(character) not in _INVISIBLE)
    stem, dot, ending = visible.rpartition(".")
    if not dot or not stem or " " in ending:
        stem = visible
    stem = _REFUSED.sub("_", stem).strip(" .")
    stem = stem.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip(" .")
    return f"_{stem}" if _DEVICE.fullmatch(stem.partition(".")[0]) else stem or UNNAMED


def disposition_of(name: str) -> str:
    """The Content-Disposition header (RFC 6266) that saves a download as `name`, which must be made by `stem_of`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().replace('"', "_").replace("\\", "_")
    if plain == name:
        return f'attachment; filename="{name}"'
    stem, _, ending = plain.rpartition(".")
    fallback = plain if stem.strip() else f"{UNNAMED}.{ending}"
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe='')}"
