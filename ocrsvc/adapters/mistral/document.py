"""The document of a request to Mistral's OCR: its bytes, from wherever the request says that they are."""

from __future__ import annotations

from collections.abc import Mapping

from ocrsvc.adapters.mistral.files import find_file, stored_data
from ocrsvc.adapters.mistral.signed_urls import file_id_of
from ocrsvc.adapters.mistral.uploaded_files import UploadedFiles
from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.request import request
from ocrsvc.http.responses import is_url
from ocrsvc.http.url_files import UrlFiles

_TYPES = ("document_url", "image_url", "file")


def document_data(sent: object, files: UploadedFiles | None, url_files: UrlFiles) -> bytes:
    """The bytes of a document, in the request's account of memory.

    Args:
        sent: The member `document`.
        files: Those that were uploaded; None where none are taken in.
        url_files: Fetches files of other hosts, where the operator allows it.

    Raises:
        BadOption: It is none, or has a URL that is not asked.
        NothingSent, BadBase64: Its data URL is empty or wrong.
        NoSuchFile: It names a file that is not there.
        SignatureRefused: It has a signed URL of this service that is not good.
        OcrsvcError: As `UrlFiles.fetch` for a URL of another host.
    """
    if not isinstance(sent, Mapping):
        raise BadOption("document is no object.", 'Send {"type": "document_url", "document_url": "data:…"}.')
    kind = sent.get("type") or next((name for name in _TYPES if name in sent), None)
    if kind == "file":
        return _file_data(sent.get("file_id"), files)
    if kind not in {"document_url", "image_url"}:
        raise BadOption(f"The type of the document is none of {', '.join(_TYPES)}.")
    return _url_data(_text_of(sent.get(kind), kind), files, url_files)


def _text_of(value: object, kind: str) -> str:
    """A URL as it is, or as the member `url` of an object."""
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise NothingSent(f"The document has no {kind}.", "Send a data URL, or the signed URL of an uploaded file.")
    return url


def _file_data(file_id: object, files: UploadedFiles | None) -> bytes:
    if not isinstance(file_id, str) or files is None:
        raise BadOption("file_id names no file that is kept here.", "Upload the file first, or send a data URL.")
    return stored_data(find_file(files, file_id))


def _url_data(url: str, files: UploadedFiles | None, url_files: UrlFiles) -> bytes:
    if not is_url(url):
        return decode_base64(url, request.share)
    file_id = file_id_of(url, files) if files is not None else None
    if files is not None and file_id is not None:
        return stored_data(files.find(file_id))
    if url_files.is_on:
        return url_files.fetch(url).data
    raise BadOption(
        "Addresses of other hosts are not fetched here.",
        "Send the document as a data URL, or upload it and send its signed URL.",
    )
