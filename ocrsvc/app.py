"""Which rooms does the web application have?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from flask import Blueprint, Flask

from ocrsvc.adapters.kserve.v1_http import make_kserve_v1
from ocrsvc.adapters.kserve.v2_http import make_kserve_v2
from ocrsvc.adapters.ocr_space.http import make_ocr_space
from ocrsvc.adapters.paddle_serving.http import make_paddle_serving
from ocrsvc.adapters.paddlehub.http import make_paddlehub
from ocrsvc.adapters.paddlex.http import make_paddlex
from ocrsvc.adapters.rapidocr_api.http import make_rapidocr_api
from ocrsvc.adapters.tfserving.http import make_tfserving
from ocrsvc.adapters.trwebocr.http import make_trwebocr
from ocrsvc.adapters.trwebocr_cpp.http import make_trwebocr_cpp
from ocrsvc.adapters.turboocr.http import make_turboocr
from ocrsvc.adapters.umi_ocr.http import make_umi_ocr
from ocrsvc.api.native import make_api
from ocrsvc.api.operators import make_operators, make_ops
from ocrsvc.api.web_page import make_page
from ocrsvc.http.admission import guarded, install_admission, shared_limits_of
from ocrsvc.http.error_responses import install
from ocrsvc.http.origins import install_origins
from ocrsvc.http.request_metrics import RequestMetrics, counted, metrics_of_one_process
from ocrsvc.http.responses import cut_accepted
from ocrsvc.jobs.store import Tasks
from ocrsvc.model_api.model import OcrModel
from ocrsvc.pipeline.read import Reader
from ocrsvc.routing import choose_by_body, choose_by_head
from ocrsvc.serving.memory_budget import SharedLimits
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.model_statistics import Statistics

Factory = Callable[[Settings, Reader], Blueprint]

DIALECTS: Final[Mapping[str, Factory]] = {
    "trwebocr": make_trwebocr,
    "trwebocr_cpp": make_trwebocr_cpp,
    "rapidocr_api": make_rapidocr_api,
    "paddlex": make_paddlex,
    "paddlehub": make_paddlehub,
    "paddle_serving": make_paddle_serving,
    "umi_ocr": make_umi_ocr,
    "ocr_space": make_ocr_space,
    "turboocr": make_turboocr,
}
"""Makes each dialect's door, a blueprint of the same name; ocrsvc.adapter_ports lists the names and usual ports."""

MODEL_DIALECTS: Final[Mapping[str, Callable[[Settings, OcrModel], Blueprint]]] = {
    "kserve_v2": make_kserve_v2,
    "tfserving": make_tfserving,
    "kserve_v1": make_kserve_v1,
}
"""As DIALECTS; these serve models, and count together how theirs is asked."""


class App(Flask):
    """Flask that does not look into each function, seven times a request, whether it is a coroutine: none here is."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is."""
        return func


def create_app(
    settings: Settings,
    reader: Reader,
    ledger: RequestMetrics | None = None,
    statistics: Statistics | None = None,
    room: SharedLimits | None = None,
    tasks: Tasks | None = None,
) -> Flask:
    """The WSGI application over a reader, which may be started later.

    Args:
        settings: The effective settings; used are dialects, usual_ports, those of bodies, callers, deadlines and
            pixels, and what single dialects are told.
        reader: Reads the images; shared by all threads.
        statistics: What the doors that serve models count; None counts for this application alone.
        ledger: Where requests are counted; by default nobody but this application knows it.
        room: What requests over gRPC share with those here; None shares nothing.
        tasks: Where documents wait to be read while nobody is connected; None takes none in.
    """
    ledger = ledger or metrics_of_one_process()
    app = App("ocrsvc", static_folder=None, template_folder=None)
    # A redirect loses the body of a POST: a path is either right or unknown. werkzeug takes slashes at its beginning
    # for one, without a redirect, which harms nobody: //v1/ocr is right, /v1//ocr is unknown.
    app.url_map.merge_slashes = False
    install(app)
    # Flask tells to wrap it so.
    room = room or shared_limits_of(settings)
    application = app.wsgi_app if room.guard is None else guarded(app.wsgi_app, room.guard)
    app.wsgi_app = counted(application, ledger)  # type: ignore[method-assign, assignment]
    app.register_blueprint(make_api(settings, reader))
    app.register_blueprint(make_ops(reader))
    app.register_blueprint(make_operators(settings, reader, ledger))
    model = OcrModel(reader, statistics or Statistics())
    app.register_blueprint(make_page())
    dialects: dict[str, Factory] = {**DIALECTS, "umi_ocr": partial(make_umi_ocr, tasks=tasks)}
    for name in settings.dialects:
        door = MODEL_DIALECTS[name](settings, model) if name in MODEL_DIALECTS else dialects[name](settings, reader)
        app.register_blueprint(door)
    app.before_request(cut_accepted)
    # A refusal needs its door before the body is received, and the right door may need the body.
    choose_by_head(app, settings)
    install_origins(app, settings)
    install_admission(app, settings, reader, room)
    choose_by_body(app, settings)
    return app
