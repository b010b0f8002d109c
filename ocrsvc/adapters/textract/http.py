"""AWS Textract's DetectDocumentText: `POST /` with the operation in the header X-Amz-Target, in JSON 1.1."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from flask import Blueprint, Response
from werkzeug.exceptions import MethodNotAllowed

from ocrsvc import errors
from ocrsvc.access.api_keys import KeyRequest
from ocrsvc.adapters.context import AdapterContext, CodedError, make_blueprint, original_code_of
from ocrsvc.adapters.textract.blocks import blocks_of
from ocrsvc.errors import NothingSent, OcrsvcError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import problem_response
from ocrsvc.http.request import request
from ocrsvc.results import Reading, ReadOptions

JSON_TYPE: Final = "application/x-amz-json-1.1"
OPERATION: Final = "Textract.DetectDocumentText"
_TARGET: Final = "X-Amz-Target"
_REMEDY: Final = "Send the file in Document.Bytes."
_SHOWN_CHARACTERS: Final = 100

_SIGNED_BY: Final = re.compile(r"AWS4-HMAC-SHA256\s+Credential=([^/,\s]+)/")
# Textract's exception for each error class; the first match wins.
_EXCEPTIONS: Final[Sequence[tuple[type[OcrsvcError], str]]] = (
    (errors.KeyMissing, "MissingAuthenticationTokenException"),
    (errors.KeyRefused, "UnrecognizedClientException"),
    (errors.ScopeMissing, "AccessDeniedException"),
    (errors.UnsupportedImage, "UnsupportedDocumentException"),
    (errors.BrokenImage, "BadDocumentException"),
    (errors.ImageCrashesEngine, "BadDocumentException"),
    (errors.BodyTooLarge, "DocumentTooLargeException"),
    (errors.ImageTooLarge, "DocumentTooLargeException"),
    (errors.TooManyPages, "DocumentTooLargeException"),
    (errors.CallerError, "InvalidParameterException"),
    (errors.Refused, "ThrottlingException"),
    (OcrsvcError, "InternalServerError"),
)


def credentials(request: KeyRequest) -> str:
    """The access key id of a signed request. See AdapterEntry.credentials.

    The signature is not verified: that needs the secret access key itself, but only a digest of it is stored.
    """
    signed = _SIGNED_BY.match(request.header("Authorization"))
    return signed[1] if signed else ""


def make_textract(context: AdapterContext) -> Blueprint:
    """Make the blueprint with the only route, POST /."""

    def call() -> Response:
        target = request.headers.get(_TARGET)
        if target is None:
            # The request does not come from an AWS client: answer as if this path had no POST.
            raise MethodNotAllowed(["GET", "HEAD", "OPTIONS"])
        if target != OPERATION:
            named = target[:_SHOWN_CHARACTERS]
            raise CodedError("UnknownOperationException", f"Unknown operation {named!r}.", f"Use {OPERATION}.")
        file = context.read_pages(_document(request.content.members.get("Document")), ReadOptions(words=True))
        for _, error in file.errors:
            # The response has no place for a page's error, so one failed page fails the request.
            raise error
        return _as_json(to_answer(file.readings))

    return make_blueprint("textract", _failure, [("POST", "/", call)])


def _document(document: object) -> bytes:
    """The document's bytes. Raises NothingSent, CodedError for an object of S3, and as `decode_base64`."""
    members = document if isinstance(document, Mapping) else {}
    text = members.get("Bytes")
    if isinstance(text, str) and text:
        return decode_base64(text, request.share)
    if members.get("S3Object") is not None:
        raise CodedError("InvalidS3ObjectException", "Objects in S3 are not fetched here.", _REMEDY)
    raise NothingSent("The request has no document.", _REMEDY)


def to_answer(readings: Sequence[Reading]) -> dict[str, Any]:
    """The pages of a document as Textract's answer."""
    return {
        "DocumentMetadata": {"Pages": len(readings)},
        "Blocks": [block for reading in readings for block in blocks_of(reading.page)],
        "DetectDocumentTextModelVersion": readings[0].engine.model,
    }


def _failure(failure: OcrsvcError) -> Response:
    if _TARGET not in request.headers:
        return problem_response(failure)
    code = original_code_of(_EXCEPTIONS, failure, "SerializationException")
    response = _as_json({"__type": code, "message": str(failure)}, failure.status)
    response.headers["x-amzn-ErrorType"] = code
    return response


def _as_json(answer: object, status: int = 200) -> Response:
    headers = {"x-amzn-RequestId": request.id}
    return Response(orjson.dumps(answer), status, headers, content_type=JSON_TYPE)
