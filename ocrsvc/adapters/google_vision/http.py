"""Google Cloud Vision's API over REST: TEXT_DETECTION and DOCUMENT_TEXT_DETECTION of images:annotate."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.access.api_keys import KeyRequest
from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.adapters.google_vision.annotations import annotations_of
from ocrsvc.engines.model.description import ACCEPTED_LANGUAGE, parse_language
from ocrsvc.errors import BadOption, BodyTooLarge, NothingSent, OcrsvcError, UnknownModel
from ocrsvc.grpc_server.method import code_of
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import shown
from ocrsvc.http.parsed_body import MAX_IMAGES
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_reported_in_a_200, is_url, read_images
from ocrsvc.results import Reading, ReadOptions

METHOD: Final = "/images:annotate"
_PARENTS: Final = ("", "/projects/<project>", "/projects/<project>/locations/<location>")
# Names and numbers of the enumeration Feature.Type: Google's own clients send the numbers.
FEATURES: Final = frozenset({"TEXT_DETECTION", 5, "DOCUMENT_TEXT_DETECTION", 11})
_REMEDY: Final = "Send its bytes as base64 in image.content."
_SHOWN_CHARACTERS: Final = 40

Outcome = Reading | OcrsvcError
Entry = Mapping[str, Any]


def credentials(request: KeyRequest) -> str:
    """The API key in the header `X-Goog-Api-Key`, or `key` in the query. See AdapterEntry.credentials."""
    in_query = request.argument("key") if request.path.endswith(METHOD) else ""
    return request.header("X-Goog-Api-Key") or in_query


def make_google_vision(context: AdapterContext) -> Blueprint:
    """Make POST /v1/images:annotate, also below a project and a location, which are ignored."""

    def annotate(**_parent: str) -> Response:
        entries = _entries(request.content.members.get("requests"))
        return as_json({"responses": _answers(_read(entries, context))})

    return make_blueprint("google_vision", _failure, [("POST", f"/v1{each}{METHOD}", annotate) for each in _PARENTS])


def _entries(requests: object) -> Sequence[Entry]:
    """The image requests. Raises NothingSent, BadOption, BodyTooLarge."""
    if not isinstance(requests, list) or not requests:
        raise NothingSent("The body has no list 'requests'.", 'Send {"requests": [{"image": …, "features": […]}]}.')
    if len(requests) > MAX_IMAGES:
        raise BodyTooLarge(f"The request holds more than {MAX_IMAGES} images.", "Send several requests.")
    if not all(isinstance(entry, Mapping) for entry in requests):
        raise BadOption("An element of 'requests' is not an object.", "Send objects with image and features.")
    return requests


def _read(entries: Sequence[Entry], context: AdapterContext) -> list[Outcome]:
    """The outcome of each request, in order; those with the same language are read together."""
    outcomes: dict[int, Outcome] = {}
    images: dict[str | None, dict[int, bytes]] = {}
    for number, entry in enumerate(entries):
        try:
            _check_features(entry.get("features"))
            lang = _language(entry.get("imageContext")) if context.reader.has_models else None
            images.setdefault(lang, {})[number] = _image(entry.get("image"), context)
        except OcrsvcError as error:
            if not is_reported_in_a_200(error):
                raise
            outcomes[number] = error.without_frames()
    for lang, group in images.items():
        options = ReadOptions(words=True, characters=True, lang=lang)
        try:
            read: Sequence[Outcome] = read_images(context.reader, list(group.values()), options)
        except UnknownModel as error:
            read = [error] * len(group)
        outcomes.update(zip(group, read, strict=True))
    return [outcomes[number] for number in range(len(entries))]


def _check_features(features: object) -> None:
    """Raise BadOption if an image request has no features, or asks for any feature other than text."""
    kinds = [feature.get("type") if isinstance(feature, Mapping) else None for feature in _listed(features)]
    wrong = [kind for kind in kinds if not isinstance(kind, str | int) or kind not in FEATURES]
    if not kinds or wrong:
        raise BadOption(
            f"The feature {shown(wrong[0])[:_SHOWN_CHARACTERS]} is not supported." if kinds else "No feature is given.",
            'Send {"features": [{"type": "TEXT_DETECTION"}]} or DOCUMENT_TEXT_DETECTION.',
        )


def _language(context: object) -> str | None:
    """The first language hint, without an extension such as `-t-i0-handwrit`; None if missing. Raises BadOption."""
    hints = _listed(context.get("languageHints")) if isinstance(context, Mapping) else ()
    if not hints:
        return None
    hint = shown(hints[0])[:_SHOWN_CHARACTERS]
    try:
        return parse_language(hint.lower().partition("-t-")[0])
    except ValueError:
        raise BadOption(f"The language hint is {hint!r}: accepted is {ACCEPTED_LANGUAGE}.") from None


def _image(image: object, context: AdapterContext) -> bytes:
    """An image's bytes, from base64 or a URL. Raises CallerError, and as `decode_base64` and `fetch`."""
    members = image if isinstance(image, Mapping) else {}
    content, source = members.get("content"), members.get("source")
    if isinstance(content, str) and content:
        return decode_base64(content, request.share)
    places = source if isinstance(source, Mapping) else {}
    url = places.get("imageUri") or places.get("gcsImageUri")
    if not isinstance(url, str):
        raise NothingSent("The request has no image.", _REMEDY)
    if not is_url(url):
        raise BadOption(f"The image's address {url[:_SHOWN_CHARACTERS]!r} is no http or https URL.", _REMEDY)
    return context.fetch(url, _REMEDY).data


def _answers(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """An answer or error for each image. If all failed, raises the first error that a 200 response cannot report."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, OcrsvcError)]
    refusal = next((error for error in errors if not is_reported_in_a_200(error)), None)
    if refusal is not None and len(errors) == len(outcomes):
        raise refusal
    return [annotations_of(outcome.page) if isinstance(outcome, Reading) else _error(outcome) for outcome in outcomes]


def _error(error: OcrsvcError) -> dict[str, Any]:
    """One image's error as google.rpc.Status, whose `code` is a gRPC status code."""
    failure = failure_of(error)
    return {"error": {"code": code_of(failure).value, "message": str(failure)}}


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _failure(failure: OcrsvcError) -> Response:
    """The error response of a whole call: `code` is the HTTP status, `status` the name of the gRPC status."""
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": failure.code.upper(), "domain": "ocrsvc"}
    error = {"code": failure.status, "message": str(failure), "status": code_of(failure).name, "details": [reason]}
    return as_json({"error": error}, failure.status)
