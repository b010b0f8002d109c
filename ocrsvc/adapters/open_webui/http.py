"""The protocol of Open WebUI's external document loader: PUT /process takes a file and returns its text."""

from typing import Final
from urllib.parse import unquote

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, all_pages, file_name_of, make_blueprint
from ocrsvc.errors import CallerError, NothingSent, OcrsvcError
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.results import ReadOptions
from ocrsvc.serving.memory_budget import Share

# Use the text layer of PDF pages where it matches what the page shows, because most documents are not scans.
_OPTIONS: Final = ReadOptions(tables=True, text_layer="auto")
# Memory to reserve for each byte of a text: a Python string may have 4 bytes per character, and the JSON 6 (\u0001).
_TEXT_COPIES: Final = 10


class NoText(CallerError, status=422, code="no_text", title="The document has no text"):
    """No text was found in the document. This is an error because the protocol has no response for it."""


def make_open_webui(context: AdapterContext) -> Blueprint:
    """Make PUT /process, and the same as POST for clients that cannot send PUT."""

    def process() -> Response:
        if request.mimetype.startswith("multipart/"):
            raise CallerError("The body is a form.", "Send the file itself as the body.")
        data = request.take_body()
        if not data:
            raise NothingSent("The request has no file.", "Send the file itself as the body.")
        about = {"source": file_name_of(unquote(request.headers.get("X-Filename", "")), "file")}
        text = text_of(data, request.share)
        if text is None:
            documents = _pages_of(data, context, about)
        else:
            masked = context.reader.masked_text(text, request.context)
            documents = [{"page_content": masked, "metadata": about}] if text.strip() else []
        if not documents:
            raise NoText("No extractable text was found in the document.")
        return as_json(documents)

    return make_blueprint("open_webui", _failure, [(method, "/process", process) for method in ("PUT", "POST")])


def _failure(failure: OcrsvcError) -> Response:
    return as_json({"detail": str(failure)}, failure.status)


def _pages_of(data: bytes, context: AdapterContext, about: dict[str, str]) -> list[dict[str, object]]:
    """An Open WebUI document for each page that has text. Raises as `AdapterContext.read_pages`."""
    pages = all_pages(context.read_pages(data, _OPTIONS))
    return [
        {
            "page_content": text,
            "metadata": {**about, "page": page.number - 1, "page_label": str(page.number), "total_pages": len(pages)},
        }
        for page, text in markdown_by_page(pages)
        if text
    ]


def text_of(data: bytes, share: Share) -> str | None:
    """Decode a UTF-8 file, and count its text in `share`; None for other files. Raises QueueFull, BodyTooLarge.

    Open WebUI sends all files of a chat to its external loader, also Markdown, tables and source code.
    """
    if is_image(data) or b"\0" in data:
        return None
    share.take(_TEXT_COPIES * len(data))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
