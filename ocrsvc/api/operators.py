"""Routes for health, readiness, version and API description; metrics and /ops, by default only for this machine."""

import os
import platform
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Final

import orjson
from flask import Blueprint, Response, abort

from ocrsvc import __version__
from ocrsvc.access.audit_log import audit_log_of
from ocrsvc.access.gate import AccessGate
from ocrsvc.api.openapi import openapi
from ocrsvc.api.overview import denylist_to_dict, keys_to_list, overview, workers_to_list
from ocrsvc.api.web_page import add_operators_page
from ocrsvc.errors import NotReady
from ocrsvc.http.origins import check_origin, is_local
from ocrsvc.http.request import request
from ocrsvc.http.request_metrics import RequestMetrics
from ocrsvc.http.responses import as_json
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import EngineInfo
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import is_installed
from ocrsvc.telemetry.metrics import STUCK, WAITING
from ocrsvc.telemetry.prometheus import Observed, expose

_READY_RETRY_S: Final = 2
_LIBRARIES: Final = (
    *("flask", "gunicorn", "numpy", "onnxruntime", "onnxruntime-gpu", "opencv-python-headless", "openvino"),
)

DENYLIST_PATH: Final = "/ops/denylist"
OLD_DENYLIST_PATH: Final = "/ops/quarantine"


def make_ops(reader: Reader, gate: AccessGate | None = None, *, fetches_urls: bool = False) -> Blueprint:
    """Make GET /healthz, /readyz, /version and /openapi.json; `gate` is None if requests need no API keys."""
    ops = Blueprint("ops", __name__)
    libraries = _library_versions()

    @ops.get("/healthz")
    def healthz() -> Response:
        return as_json({"status": "ok"})

    @ops.get("/readyz")
    def readyz() -> Response:
        if not reader.ready:
            text = "No engine is warm in this worker, or the service is shutting down."
            raise NotReady(text, "Try again later.", _READY_RETRY_S)
        if gate is not None and not gate.is_ready:
            raise NotReady("The API key store does not respond.", "Try again later.", _READY_RETRY_S)
        return as_json({"status": "ready"})

    @ops.get("/version")
    def version() -> Response:
        return as_json({"name": "ocrsvc", "version": __version__, "engine": _described(reader), "libraries": libraries})

    @ops.get("/openapi.json")
    def description_of_the_api() -> Response:
        described = _description(wants_keys=gate is not None, fetches_urls=fetches_urls)
        return Response(described, content_type="application/json")

    return ops


@cache
def _description(*, wants_keys: bool, fetches_urls: bool) -> bytes:
    described = openapi(wants_keys=wants_keys, fetches_urls=fetches_urls)
    return orjson.dumps(described, option=orjson.OPT_INDENT_2)


def make_operators(
    settings: Settings, reader: Reader, request_metrics: RequestMetrics, gate: AccessGate | None = None
) -> Blueprint:
    """Make GET /metrics, /ops and /ops/…, if OCRSVC_OPS allows it; any worker can answer for the whole service."""
    operators, audit = Blueprint("operators", __name__), audit_log_of(settings)
    if settings.ops == "off":
        return operators
    operators.before_request(check_origin)
    if settings.ops == "local":
        operators.before_request(_check_caller)

    @operators.get("/metrics")
    def metrics() -> Response:
        # Each worker publishes these values twice a second; update this worker's now.
        request_metrics.worker_metrics.put(WAITING, reader.waiting())
        request_metrics.worker_metrics.put(STUCK, reader.stuck_threads())
        denied, table = count_denied(request_metrics), request_metrics.worker_table
        observed = Observed(request_metrics.store, table, _described(reader), denied)
        body, content_type = expose(observed, request.headers.get("Accept", ""))
        return Response(body, content_type=content_type)

    @operators.get("/ops/workers")
    def workers() -> Response:
        arbiter = os.getppid() if request_metrics.worker_table.head.base else None
        return as_json({"arbiter_pid": arbiter, "workers": workers_to_list(request_metrics.worker_table)})

    @operators.get("/ops/overview")
    def whole() -> Response:
        return as_json(overview(request_metrics, _described(reader), settings.engine))

    @operators.get("/ops/keys")
    def keys() -> Response:
        return as_json({"keys": None if gate is None else keys_to_list(gate, time.time())})

    @operators.get(DENYLIST_PATH)
    @operators.get(OLD_DENYLIST_PATH)
    def denylist() -> Response:
        return as_json(denylist_to_dict(request_metrics))

    @operators.delete(DENYLIST_PATH)
    @operators.delete(f"{DENYLIST_PATH}/<digest>")
    @operators.delete(OLD_DENYLIST_PATH)
    @operators.delete(f"{OLD_DENYLIST_PATH}/<digest>")
    def release(digest: str | None = None) -> Response:
        lists = (request_metrics.image_denylist, request_metrics.body_denylist)
        audit.check()
        forgotten = sum(known.forget(digest) for known in lists if known is not None)
        audit.write(_who(), "denylist.release", time.time(), digest=digest, forgotten=forgotten)
        return as_json({"forgotten": forgotten})

    operators.after_request(_name_new_path)
    add_operators_page(operators)
    return operators


def _name_new_path(response: Response) -> Response:
    """Mark responses under the old path as deprecated (RFC 9745), and name the new path."""
    if request.path.startswith(OLD_DENYLIST_PATH):
        response.headers["Deprecation"] = "@1795824000"
        response.headers["Link"] = f'<{DENYLIST_PATH}>; rel="successor-version"'
    return response


def _who() -> str:
    """The caller in the audit log: the name of its API key, or its address if it has no key."""
    return f"key:{request.key.name}" if request.key is not None else f"address:{request.remote_addr or 'local'}"


def count_denied(request_metrics: RequestMetrics) -> Mapping[str, int]:
    """Number of images and of request bodies that the crash denylists refuse at present."""
    lists = {"image": request_metrics.image_denylist, "request": request_metrics.body_denylist}
    return {
        kind: 0 if known.is_empty() else sum(entry.is_refused for entry in known.entries())
        for kind, known in lists.items()
        if known is not None
    }


def _check_caller() -> None:
    """Answer 403 to callers on other machines."""
    if not is_local(request.environ):
        abort(403)


def _described(reader: Reader) -> EngineInfo | None:
    try:
        return reader.describe()
    except NotReady:
        return None


def _library_versions() -> dict[str, str]:
    """Versions of Python and of installed packages that affect results."""
    installed = {name: metadata.version(name) for name in _LIBRARIES if is_installed(name)}
    return {"python": platform.python_version(), **installed}
