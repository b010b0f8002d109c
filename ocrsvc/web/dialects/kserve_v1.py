"""How does KServe's v1 protocol speak?"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.settings import Settings
from ocrsvc.web.model.card import NAME, NotOffered
from ocrsvc.web.model.ocr import OcrModel
from ocrsvc.web.model.predict import check_servable, predict, status
from ocrsvc.web.model.rest import json_answer, serve_paths

_MODEL: Final = r"/v1/models/(?P<name>[^/:]+)"


def make_kserve_v1(settings: Settings, model: OcrModel) -> Blueprint:
    """The list of models, their readiness and predictions, over a model."""
    door = Blueprint("kserve_v1", __name__)

    def run(name: str) -> Response:
        return predict(settings, model, name, None, None)

    serve_paths(
        door,
        ("/v1/models", "/v1/models/<name>"),
        (
            ("GET", "/v1/models", lambda: json_answer({"models": [NAME]})),
            ("GET", _MODEL, lambda name: status(model, name)),
            ("POST", _MODEL + ":predict", run),
            ("POST", _MODEL + ":explain", _explain),
        ),
    )
    return door


def _explain(name: str) -> Response:
    check_servable(name, None)
    raise NotOffered("There is no explainer.", "Use :predict.")
