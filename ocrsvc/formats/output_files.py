"""The files of documents that were read: one per output format, their names, and all of them as one zip."""

from __future__ import annotations

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
_MOST_BYTES: Final = 150
_READ_CHARACTERS: Final = 1000
_PATH_SIGNS: Final = re.compile(r"[/\\]")
# What Windows refuses in names; names of its devices with any ending.
_REFUSED: Final = re.compile(r'[<>:"|?*]')
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
# Controls, formats (which turn the direction of text round), surrogates, private and unknown signs, breaks of lines.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

# The first date that a zip can hold: the same results give the same bytes.
_ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class NamedResult:
    """A document that was read, and the name under which it was sent, "" for none."""

    name: str
    result: DocumentResult


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that can be written: its name, safe to save under, its Content-Type, and what writes it."""

    name: str
    media_type: str
    write: Callable[[Output, float, Check], object]


def files_of(
    formats: Sequence[str], documents: Sequence[NamedResult], as_json: Callable[[], bytes], *, words: bool
) -> list[OutputFile]:
    """The files of these formats, of one or more documents.

    Several documents become one file of each format, their pages numbered through. Searchable PDF joins images only;
    with a PDF among the documents each gets a file of its own. `as_json` makes the file of the format "json"; `words`
    says whether text formats contain the words of lines, as searchable PDF always does.
    """
    stem = _stem_of(documents)
    in_lines = documents if words else [replace(one, result=_without_words(one.result)) for one in documents]
    return [file for name in formats for file in _files_of(name, stem, documents if name == PDF else in_lines, as_json)]


def zip_name(documents: Sequence[NamedResult]) -> str:
    """The name of a zip of several of their files."""
    return f"{_stem_of(documents)}.zip"


def write_zip(files: Sequence[OutputFile], output: IO[bytes], limit_s: float, check: Check) -> None:
    """Write a zip of these files; memory holds none of them whole, except JSON. Raises as they do, and OSError."""
    with zipfile.ZipFile(output, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, _ZIP_DATE)
            # The streams in a PDF are compressed already.
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
            own = f"{number:0{digits}}-{stem_of(document.name)}{form.suffix}"
            yield OutputFile(own, form.media_type, partial(write_document, name, document.result))
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
    """The pages of all documents as those of one, numbered through; pages that failed keep their numbers."""
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
    # Imports what reads and writes images.
    from ocrsvc.formats.pdf.searchable import write_images

    write_images(results, output, limit_s, check)


def stem_of(sent: str) -> str:
    """The name of a sent file without folders and its ending, as a name for what is made of it; "document" for none."""
    name = unicodedata.normalize("NFC", _PATH_SIGNS.split(sent[-_READ_CHARACTERS:])[-1])
    seen = "".join(sign for sign in name if unicodedata.category(sign) not in _UNSEEN)
    stem, dot, ending = seen.rpartition(".")
    if not dot or not stem or " " in ending:
        stem = seen
    stem = _REFUSED.sub("_", stem).strip(" .")
    stem = stem.encode()[:_MOST_BYTES].decode(errors="ignore").strip(" .")
    return f"_{stem}" if _DEVICE.fullmatch(stem.partition(".")[0]) else stem or UNNAMED


def disposition_of(name: str) -> str:
    """The header Content-Disposition (RFC 6266) of a file to be saved under this name, which is one of `stem_of`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().replace('"', "_").replace("\\", "_")
    if plain == name:
        return f'attachment; filename="{name}"'
    stem, _, ending = plain.rpartition(".")
    fallback = plain if stem.strip() else f"{UNNAMED}.{ending}"
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe='')}"
