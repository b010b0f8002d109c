"""The documents of a request to docling-serve: files of a form, or sources of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from ocrsvc.adapters.docling.conversion import Conversion, parse_conversion, values_of_form, values_of_json
from ocrsvc.errors import BadOption, BodyTooLarge, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.url_files import UrlFiles

FILES: Final = "files"
MOST_FILES: Final = 100
_NAME_LETTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Document:
    """One file that was sent, and what its sender calls it."""

    filename: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ConvertRequest:
    """What one request carries and asks for."""

    documents: Sequence[Document]
    conversion: Conversion


def request_of_form(content: Content) -> ConvertRequest:
    """A form with `files`. Raises BadOption, NothingSent, and BodyTooLarge for more files than are taken."""
    conversion = parse_conversion(values_of_form(content.fields), content.text("target_type"))
    _check_no_callbacks(content.text("callbacks"))
    parts = [part for part in content.files if part.name == FILES]
    _check_count(len(parts), f"a file in the field {FILES!r}")
    named = [Document(_name_of(part.filename or "", number), part.data) for number, part in enumerate(parts)]
    return ConvertRequest(named, conversion)


def request_of_json(content: Content, url_files: UrlFiles) -> ConvertRequest:
    """JSON with `sources`. Raises as `request_of_form`, BadBase64, and as `UrlFiles.fetch`."""
    members = content.members
    target = members.get("target")
    kind = target.get("kind") if isinstance(target, Mapping) else target
    conversion = parse_conversion(values_of_json(members.get("options") or {}), kind)
    sources = _sources(members)
    _check_count(len(sources), "an entry in sources")
    _check_no_callbacks(members.get("callbacks"))
    documents = [_document(source, place, content, url_files) for place, source in enumerate(sources)]
    return ConvertRequest(documents, conversion)


def _sources(members: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """Those of `sources`, and of the lists that the version v1alpha has in its place."""
    found: list[object] = []
    for name in ("sources", "file_sources", "http_sources"):
        listed = members.get(name) or []
        if not isinstance(listed, list):
            raise BadOption(f"{name} is no list.", "Send a list of sources.")
        found += listed
    sources = [source for source in found if isinstance(source, Mapping)]
    if len(sources) < len(found):
        raise BadOption("A source is no JSON object.", _HOW)
    return sources


_HOW: Final = 'Send it as {"kind": "file", "base64_string": "…", "filename": "a.pdf"}.'


def _document(source: Mapping[str, Any], place: int, content: Content, url_files: UrlFiles) -> Document:
    url, sent = source.get("url"), source.get("base64_string")
    if isinstance(url, str):
        return _fetched(source, url, place, url_files)
    if source.get("kind", "file") != "file" or not isinstance(sent, str):
        raise BadOption(f"Source {place} is no file with base64_string.", _HOW)
    name = source.get("filename")
    return Document(_name_of(name if isinstance(name, str) else "", place), decode_base64(sent, content.share))


def _fetched(source: Mapping[str, Any], url: str, place: int, url_files: UrlFiles) -> Document:
    if not url_files.is_on:
        raise BadOption("Addresses are not fetched here.", _HOW)
    if source.get("headers"):
        raise BadOption("headers of a source are not sent on to another host.", "Send the file itself.")
    file = url_files.fetch(url)
    return Document(_name_of(file.name, place), file.data)


def _check_no_callbacks(sent: object) -> None:
    if sent:
        raise BadOption("callbacks are not called here.", "Ask /v1/status/poll, or leave a job with POST /v1/jobs.")


def _check_count(count: int, what: str) -> None:
    if not count:
        raise NothingSent(f"The request carries no document: it needs {what}.")
    if count > MOST_FILES:
        raise BodyTooLarge(f"The request holds {count} documents; the limit is {MOST_FILES}.", "Send several requests.")


def _name_of(sent: str, place: int) -> str:
    """The last part of a name that was sent; one of our own where there is none."""
    name = PurePath(sent[-1000:].replace("\\", "/").replace("\0", "")).name[-_NAME_LETTERS:]
    # Half of a pair that was cut cannot be written as UTF-8.
    return name.encode("utf-8", "ignore").decode() or (f"file_{place}.pdf" if place else "file.pdf")
