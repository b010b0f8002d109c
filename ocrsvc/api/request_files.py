"""The files of a request to the native API: parts, body, base64 fields, or a URL."""

from typing import Final
from urllib.parse import unquote, urlsplit

from ocrsvc.connections.fetching import FetchedFile
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.url_files import UrlFiles

IMAGE_FIELDS: Final = ("file", "files", "image", "images", "img")
URL_FIELD: Final = "url"


def request_files(content: Content, url_files: UrlFiles) -> list[bytes | OcrsvcError]:
    """The files in order, the one at a URL last; invalid base64 gives an error instead. Raises as `images`, `fetch`."""
    fetched = fetch_named(content, url_files)
    if fetched is None:
        return content.images(IMAGE_FIELDS, IMAGE_FIELDS)
    has_more = content.files or content.raw is not None or any(name in IMAGE_FIELDS for name, _ in content.fields)
    return [*(content.images(IMAGE_FIELDS, IMAGE_FIELDS) if has_more else ()), fetched.data]


def file_names(content: Content, count: int) -> list[str]:
    """The client's file names for the first `count` files; "" for those without."""
    names = [*content.file_names(IMAGE_FIELDS), *[""] * count][:count]
    url = content.text(URL_FIELD)
    return names if not url else [*names[:-1], unquote(urlsplit(url).path)]


def fetch_named(content: Content, url_files: UrlFiles) -> FetchedFile | None:
    """Fetch the file at the request's URL; None without URL or if fetching is off. Raises BadOption, and as `fetch`."""
    urls = [value for name, value in content.fields if name == URL_FIELD and value is not None]
    if not urls or not url_files.is_on:
        return None
    if len(urls) > 1 or not isinstance(urls[0], str | bytes):
        raise BadOption("The field 'url' must be one string.", "Send one URL per request.")
    return url_files.fetch(as_text(urls[0]).strip())


def option_fields(content: Content, url_files: UrlFiles) -> list[tuple[str, object]]:
    """The fields that are neither files nor the URL. Raises BadOption for a file in another field."""
    for part in content.files:
        if part.name not in IMAGE_FIELDS:
            what = f"A file was sent in the unknown field {part.name[:40]!r}."
            raise BadOption(what, f"Send files in the field {IMAGE_FIELDS[0]!r}.")
    if not url_files.is_on and any(name == URL_FIELD for name, _ in content.fields):
        remedy = "Send the file itself, or ask the operator to name the host in OCRSVC_URL_HOSTS."
        raise BadOption("'url' is not an option: this service does not fetch URLs.", remedy)
    return [(name, value) for name, value in content.fields if name not in (*IMAGE_FIELDS, URL_FIELD)]
