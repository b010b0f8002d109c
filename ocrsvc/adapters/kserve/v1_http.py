"""KServe's v1 protocol over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.adapters.model_protocols.rest import json_answer, serve_paths
from ocrsvc.adapters.model_protocols.tensors import NotOffered
from ocrsvc.adapters.tfserving.http import OTHER_VERBS, find_servable, predict, status, wrong_method

_MODEL: Final = r"/v1/models/(?P<name>[^/:]+)"


def make_kserve_v1(context: AdapterContext) -> Blueprint:
    """The list of models, their readiness and predictions, over a model."""
    model, blueprint = context.model, Blueprint("kserve_v1", __name__)
    # Where both have a path this adapter's is the more exact one, so that it answers for TensorFlow Serving as well.
    others = ("POST", _MODEL + f":(?P<verb>{OTHER_VERBS})", partial(wrong_method, model))
    serve_paths(
        blueprint,
        ("/v1/models", "/v1/models/<name>"),
        (
            ("GET", "/v1/models", lambda: json_answer({"models": model.models.names()})),
            ("GET", _MODEL, partial(status, model)),
            ("POST", _MODEL + ":predict", partial(predict, model)),
            ("POST", _MODEL + ":explain", partial(_explain, model)),
            *([others] if "tfserving" in context.settings.dialects else ()),
        ),
    )
    return blueprint


def _explain(model: OcrModel, name: str) -> Response:
    find_servable(model.models, name)
    raise NotOffered("There is no explainer.", "Use :predict.")
