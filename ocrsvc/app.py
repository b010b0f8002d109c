"""Which rooms does the web application have?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flask import Blueprint, Flask

from ocrsvc.reader import Reader
from ocrsvc.settings import Settings
from ocrsvc.web.api import make_api
from ocrsvc.web.crossroads import install_crossroads
from ocrsvc.web.dialects.trwebocr import make_trwebocr
from ocrsvc.web.dialects.trwebocr_cpp import make_trwebocr_cpp
from ocrsvc.web.failures import install
from ocrsvc.web.ops import make_ops

Factory = Callable[[Settings, Reader], Blueprint]

DIALECTS: Final[Mapping[str, Factory]] = {
    "trwebocr": make_trwebocr,
    "trwebocr_cpp": make_trwebocr_cpp,
}
"""Makes each dialect's door, a blueprint of the same name; ocrsvc.doors lists the names and usual ports."""


def create_app(settings: Settings, reader: Reader) -> Flask:
    """The WSGI application over a reader, which may be started later.

    Args:
        settings: The effective settings; used are dialects, usual_ports, max_body_bytes, deadline_s and what single
            dialects are told.
        reader: Reads the images; shared by all threads.
    """
    app = Flask("ocrsvc", static_folder=None, template_folder=None)
    # A redirect loses the body of a POST: a path is either right or unknown. werkzeug takes slashes at its beginning
    # for one, without a redirect, which harms nobody: //v1/ocr is right, /v1//ocr is unknown.
    app.url_map.merge_slashes = False
    install(app)
    app.register_blueprint(make_api(settings, reader))
    app.register_blueprint(make_ops(reader))
    for name in settings.dialects:
        app.register_blueprint(DIALECTS[name](settings, reader))
    install_crossroads(app, settings)
    return app
