"""Is the service alive, is it ready, and which one is it?"""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

import orjson
from flask import Blueprint, Response

from ocrsvc import __version__
from ocrsvc.errors import NotReady
from ocrsvc.formats.structured import engine_to_dict
from ocrsvc.reader import Reader
from ocrsvc.web.openapi import openapi

_READY_RETRY_S: Final = 2
_LIBRARIES: Final = ("flask", "gunicorn", "numpy", "onnxruntime", "onnxruntime-gpu", "opencv-python-headless")


def make_ops(reader: Reader) -> Blueprint:
    """GET /healthz, /readyz, /version and /openapi.json over a reader."""
    ops = Blueprint("ops", __name__)
    libraries = _library_versions()
    description = orjson.dumps(openapi(), option=orjson.OPT_INDENT_2)

    @ops.get("/healthz")
    def healthz() -> Response:
        return _json({"status": "ok"})

    @ops.get("/readyz")
    def readyz() -> Response:
        if not reader.ready:
            raise NotReady("No engine is warm in this worker.", "Ask again in a moment.", _READY_RETRY_S)
        return _json({"status": "ready"})

    @ops.get("/version")
    def version() -> Response:
        return _json({"name": "ocrsvc", "version": __version__, "engine": _engine(reader), "libraries": libraries})

    @ops.get("/openapi.json")
    def description_of_the_api() -> Response:
        return Response(description, content_type="application/json")

    return ops


def _engine(reader: Reader) -> dict[str, str] | None:
    try:
        return engine_to_dict(reader.describe())
    except NotReady:
        return None


def _library_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that matter for an answer."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _json(answer: object) -> Response:
    return Response(orjson.dumps(answer), content_type="application/json")
