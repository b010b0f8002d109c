"""Which rooms does the web application have?"""

from __future__ import annotations

from flask import Flask

from ocrsvc.reader import Reader
from ocrsvc.settings import Settings
from ocrsvc.web.admission import install_admission
from ocrsvc.web.api import make_api
from ocrsvc.web.counting import Ledger, counted, ledger_of_one
from ocrsvc.web.dialects.trwebocr import make_trwebocr
from ocrsvc.web.dialects.trwebocr_cpp import make_trwebocr_cpp
from ocrsvc.web.failures import install
from ocrsvc.web.ops import make_operators, make_ops
from ocrsvc.web.page import make_page
from ocrsvc.web.sending import in_one_piece


def create_app(settings: Settings, reader: Reader, ledger: Ledger | None = None) -> Flask:
    """The WSGI application over a reader, which may be started later.

    Args:
        settings: The effective settings; used are those of bodies, callers, deadlines and pixels.
        reader: Reads the images; shared by all threads.
        ledger: Where requests are counted; by default nobody but this application knows it.
    """
    ledger = ledger or ledger_of_one()
    app = Flask("ocrsvc", static_folder=None, template_folder=None)
    # A redirect loses the body of a POST: a path is either right or unknown. werkzeug takes slashes at its beginning
    # for one, without a redirect, which harms nobody: //v1/ocr is right, /v1//ocr is unknown.
    app.url_map.merge_slashes = False
    install(app)
    install_admission(app, settings, reader)
    # Flask tells to wrap it so.
    app.wsgi_app = in_one_piece(counted(app.wsgi_app, ledger))  # type: ignore[method-assign, assignment]
    app.register_blueprint(make_api(settings, reader))
    app.register_blueprint(make_ops(reader))
    app.register_blueprint(make_operators(settings, reader, ledger))
    app.register_blueprint(make_page())
    app.register_blueprint(make_trwebocr(settings, reader))
    app.register_blueprint(make_trwebocr_cpp(settings, reader))
    return app
