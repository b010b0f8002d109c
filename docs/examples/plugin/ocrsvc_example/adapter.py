"""The wire format over HTTP: POST /csv takes an image, and answers a row for each line of text."""

from __future__ import annotations

import csv
import io
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.results import Page, ReadOptions
from ocrsvc_example.entries import CsvSettings

_SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t"}
_CSV: Final = "text/csv; charset=utf-8"


def make_csv(context: AdapterContext) -> Blueprint:
    """POST /csv over a reader: the image as the body, as the field `image` of a form, or as base64 in JSON."""
    settings, reader = context.settings, context.reader
    assert isinstance(settings, CsvSettings), "the service adds the groups of all its plug-ins"
    separator = _SEPARATORS[settings.csv_separator]
    blueprint = Blueprint("csv", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/csv")
    def read() -> Response:
        data = request.content.first_image(("image",), ("image",))
        reading = reader.read(data, ReadOptions(), request.left_s, request.context)
        return Response(_table(reading.page, separator), content_type=_CSV)

    return blueprint


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    return Response(str(failure), failure.status, content_type="text/plain; charset=utf-8")


def _table(page: Page, separator: str) -> str:
    """Text, confidence, and the first corner of each line."""
    text = io.StringIO()
    rows = csv.writer(text, delimiter=separator)
    rows.writerow(("text", "confidence", "x", "y"))
    rows.writerows((line.text, line.confidence, *line.box[0]) for line in page.lines)
    return text.getvalue()
