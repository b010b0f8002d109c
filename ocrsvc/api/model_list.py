"""GET /v1/ocr/models: the models that requests may name, and how their versions are."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.http.responses import as_json
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.pipeline.read import Reader

PATH: Final = "/v1/ocr/models"
"""Not /v1/models, which is KServe's, and below which TensorFlow Serving's are."""


def add_model_list(api: Blueprint, reader: Reader) -> None:
    """Add GET /v1/ocr/models to the native API."""

    @api.get(PATH)
    def models() -> Response:
        listed = reader.models()
        return as_json({"default": listed.default, "models": [to_dict(one) for one in listed.versions]})


def to_dict(status: VersionStatus) -> dict[str, object]:
    """One version. Why it does not serve is for operators: it may name paths."""
    about: dict[str, object] = {"engine": None, "title": "", "tier": None, "languages": (), "licence": ""}
    if status.version is not None:
        described = status.version.description
        about = {name: getattr(described, name) for name in about}
    return {"name": status.name, "version": status.number, "state": status.state, "labels": status.labels, **about}
