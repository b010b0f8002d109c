"""Serves the web page at `/` (to non-browsers JSON), the API reference at `/docs`, the operators' page at `/ops`.

The files in `static/` and `static_ops/` are read when the service starts. Browsers revalidate them on every visit, so
that a page and its scripts have the same version.
"""

from functools import partial
from pathlib import Path
from typing import Final

import orjson
from flask import Blueprint, Response, request
from markupsafe import Markup

from ocrsvc import __version__
from ocrsvc.plugins import output_formats, text_formats

FOLDER: Final = Path(__file__).parent / "static"
OPERATORS_FOLDER: Final = FOLDER.with_name("static_ops")
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX: Final = "index.html"
DOCS: Final = "docs.html"
TABS: Final = "<!-- a tab for each output format -->"
TAB: Final = Markup(
    '<button type="button" role="tab" id="tab-{0}" aria-controls="panel" data-tab="{0}" data-suffix="{1.suffix}" '
    'data-type="{1.media_type}">{1.label}</button>'
)
FILES: Final = "<!-- a button for each other file -->"
FILE: Final = Markup(
    '<button type="button" data-t="make_{0}" data-file="{0}" data-suffix="{1.suffix}" data-type="{1.media_type}">'
    "{1.label}</button>"
)
FORM: Final = '<form id="settings">'
MODELS_FORM: Final = '<form id="settings" data-models>'
# Browsers may load only the service's own files; images may also be local ones of the user.
POLICY: Final = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
BANNER: Final = {"name": "ocrsvc", "version": __version__, "read": "POST /v1/ocr", "description": "/openapi.json"}


def make_page(*, has_models: bool = False) -> Blueprint:
    """Make GET /, /index.html (TrWebOCR's address), /docs and /static/…; with `has_models` the page offers models."""
    page = Blueprint("page", __name__)
    files = _files(FOLDER)
    index_page = _with_tabs(files[INDEX].decode())
    files[INDEX] = (index_page.replace(FORM, MODELS_FORM) if has_models else index_page).encode()
    banner = orjson.dumps(BANNER)

    @page.get("/")
    def front() -> Response:
        # Browsers prefer HTML; other clients, which usually accept */*, get JSON.
        if request.accept_mimetypes.best_match(("application/json", "text/html")) == "text/html":
            return _file(INDEX, files[INDEX])
        response = Response(banner, content_type="application/json")
        response.vary.add("Accept")
        return response

    @page.get("/index.html")
    def index() -> Response:
        return _file(INDEX, files[INDEX])

    page.add_url_rule("/docs", "docs", partial(_file, DOCS, files.pop(DOCS)))
    for name, data in files.items():
        if name != INDEX:
            page.add_url_rule(f"/static/{name}", name.replace(".", "_"), partial(_file, name, data))
    return page


def add_operators_page(operators: Blueprint) -> None:
    """Add GET /ops and /ops/static/…; the blueprint checks access."""
    files = _files(OPERATORS_FOLDER)
    for name, data in files.items():
        path = "/ops" if name == INDEX else f"/ops/static/{name}"
        operators.add_url_rule(path, name.replace(".", "_"), partial(_file, name, data))


def _files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in TYPES}


def _with_tabs(page: str) -> str:
    """Add to the page a tab per text format (plain text already has one), and a button per binary format."""
    tabs = (TAB.format(name, form) for name, form in text_formats().items() if name != "text")
    others = (FILE.format(name, form) for name, form in output_formats().items() if not form.text)
    return page.replace(TABS, "".join(tabs)).replace(FILES, "".join(others))


def _file(name: str, data: bytes) -> Response:
    """The response with a file, or 304 if the browser has the same version."""
    response = Response(data, content_type=TYPES[Path(name).suffix])
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-cache"
    if name == INDEX:
        response.vary.add("Accept")
    response.add_etag()
    response.make_conditional(request)
    return response
