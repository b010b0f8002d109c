"""The WSGI application: the native API, operators' routes, the web page, and the enabled adapters."""

from collections.abc import Callable
from functools import partial
from typing import Any

from flask import Flask

from ocrsvc.access.gate import AccessGate
from ocrsvc.access.key_routes import routes_of
from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.model_protocols.ocr_model import make_model
from ocrsvc.api.jobs import add_jobs
from ocrsvc.api.native import make_api
from ocrsvc.api.operators import make_operators, make_ops
from ocrsvc.api.web_page import make_page
from ocrsvc.connections.policy import policy_of_files
from ocrsvc.http.admission import Admission, KeyCheck, guarded, shared_limits_of
from ocrsvc.http.error_responses import install
from ocrsvc.http.origins import install_browser_headers
from ocrsvc.http.request import Request
from ocrsvc.http.request_metrics import RequestCounter, RequestMetrics, metrics_of_one_process
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.plugins import adapters, resolve
from ocrsvc.serving.memory_budget import SharedLimits
from ocrsvc.settings.settings import Settings
from ocrsvc.url_routes import Router


class App(Flask):
    """Flask without its checks for coroutine functions, seven per request, because the service has none."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function unchanged, although Flask expects coroutine functions to be wrapped here."""
        return func


def create_app(
    settings: Settings,
    reader: Reader,
    request_metrics: RequestMetrics | None = None,
    limits: SharedLimits | None = None,
    jobs: JobStore | None = None,
    gate: AccessGate | None = None,
) -> Flask:
    """Make the WSGI application for a reader, which may be started later.

    `limits` are shared with gRPC. Without `jobs` the job API is off; without `gate` no API key is needed. Raises
    ValueError if the settings have API keys but there is no gate.
    """
    if settings.keys is not None and gate is None:
        raise ValueError("The settings have API keys, but there is no gate to check them.")
    request_metrics = request_metrics or metrics_of_one_process()
    limits = limits or shared_limits_of(settings)
    app = App("ocrsvc", static_folder=None, template_folder=None)
    # Flask passes only the WSGI environ to the request class, so bind our own arguments here.
    app.request_class = partial(Request, settings=settings, memory=limits.memory)  # type: ignore[assignment]
    # werkzeug would redirect /v1//ocr to /v1/ocr, and a redirected POST loses its body; now /v1//ocr is unknown.
    app.url_map.merge_slashes = False
    install_browser_headers(app, settings)
    RequestCounter(app, request_metrics)
    install(app)
    if limits.guard is not None:
        # Wrapping `wsgi_app` is Flask's documented way to add middleware.
        app.wsgi_app = guarded(app.wsgi_app, limits.guard)  # type: ignore[method-assign]
    url_files = UrlFiles(policy_of_files(settings), settings.url_fetches)
    api = make_api(reader, url_files, settings)
    add_jobs(api, settings, reader, jobs, url_files)
    app.register_blueprint(api)
    app.register_blueprint(make_ops(reader, gate, fetches_urls=url_files.is_on))
    app.register_blueprint(make_operators(settings, reader, request_metrics, gate))
    model = make_model(settings, reader, request_metrics.store, request_metrics.worker_metrics)
    app.register_blueprint(make_page(has_models=settings.models is not None))
    context = AdapterContext(settings, reader, model, jobs, url_files)
    for name in settings.adapters:
        app.register_blueprint(resolve(adapters()[name].http)(context))
    keys = KeyCheck(gate, routes_of(settings), settings.cors) if gate is not None else None
    router = Router(app, settings)
    Admission(app, settings, reader, limits.callers, keys, router.by_head, router.by_body)
    return app
