"""The files that a request to the native API carries, or names by URL."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

from ocrsvc.connections.fetching import FetchedFile
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.url_files import UrlFiles

IMAGE_FIELDS: Final = ("file", "files", "image", "images", "img")
URL_FIELD: Final = "url"


def sent_files(content: Content, url_files: UrlFiles) -> list[bytes | OcrsvcError]:
    """The files in order, one from a URL last; bad base64 is its error. Raises as `images` and `fetch`."""
    fetched = fetch_named(content, url_files)
    if fetched is None:
        return content.images(IMAGE_FIELDS, IMAGE_FIELDS)
    has_more = content.files or content.raw is not None or any(name in IMAGE_FIELDS for name, _ in content.fields)
    return [*(content.images(IMAGE_FIELDS, IMAGE_FIELDS) if has_more else ()), fetched.data]


def file_names(content: Content, count: int) -> list[str]:
    """The client's names of the first `count` of `sent_files`; "" for those without one."""
    names = [*content.file_names(IMAGE_FIELDS), *[""] * count][:count]
    url = content.text(URL_FIELD)
    return names if not url else [*names[:-1], unquote(urlsplit(url).path)]


def fetch_named(content: Content, url_files: UrlFiles) -> FetchedFile | None:
    """The file at the URL in a request; None where there is none, or none is fetched. Raises BadOption; as `fetch`."""
    sent = [value for name, value in content.fields if name == URL_FIELD and value is not None]
    if not sent or not url_files.is_on:
        return None
    if len(sent) > 1 or not isinstance(sent[0], str | bytes):
        raise BadOption("The field 'url' is not one text.", "Send one URL in a request.")
    return url_files.fetch(as_text(sent[0]).strip())


def option_fields(content: Content, url_files: UrlFiles) -> list[tuple[str, object]]:
    """The fields that are neither files nor their URL. Raises BadOption for a file in another field."""
    for part in content.files:
        if part.name not in IMAGE_FIELDS:
            raise BadOption(
                f"A file came in the field {part.name[:40]!r}, which is not read.",
                f"Send files in the field {IMAGE_FIELDS[0]!r}.",
            )
    if not url_files.is_on and any(name == URL_FIELD for name, _ in content.fields):
        raise BadOption(
            "'url' is no option: this service fetches no files from addresses.",
            "Send the file itself, or ask the operator to name the host in OCRSVC_URL_HOSTS.",
        )
    return [(name, value) for name, value in content.fields if name not in (*IMAGE_FIELDS, URL_FIELD)]
