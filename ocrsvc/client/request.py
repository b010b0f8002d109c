"""Builds requests to the native API from images and options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict

from ocrsvc.errors import BadOption, NothingSent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

API_KEY_VARIABLE: Final = "OCRSVC_API_KEY"
PATH: Final = "/v1/ocr"
MODELS_PATH: Final = "/v1/ocr/models"
TIMEOUT_HEADER: Final = "X-Request-Timeout"
PRIORITY_HEADER: Final = "X-Priority"
# Fraction of the time left that is reserved for transferring the response.
_MARGIN: Final = 0.05
_MAX_MARGIN_S: Final = 0.5
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"([!-~]([\t -~]*[!-~])?)?")


ImageInput: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | NDArray[np.uint8]"
"""A path; the bytes of an image file; or an array, (H, W) gray or (H, W, 3) BGR, uint8."""


Priority: TypeAlias = Literal["interactive", "batch"]
"""The service reads interactive requests before batch requests."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a path of the service."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


class Options(TypedDict, total=False):
    """The reading options of docs/api.md; None means the default."""

    rotate: Literal["auto", "0", "90", "180", "270"] | None
    detect: bool | None
    upright_boxes: bool | None
    max_side: int | None
    min_confidence: float | None
    decoder: Literal["greedy", "beam"] | None
    unwarp: bool | None
    layout: bool | None
    barcodes: bool | Literal["true", "only"] | None
    region: str | None
    text_layer: Literal["ignore", "auto", "only", "merge"] | None
    tables: bool | None
    spaces: Literal["auto", "model", "visible"] | None
    words: bool | Literal["segmented"] | None
    characters: bool | None
    mask: str | None
    model: str | None
    tier: Literal["auto", "tiny", "small", "medium"] | None
    lang: str | None
    lines: bool | None
    pages: str | None
    partial: bool | None
    priority: Priority | None
    timing: Literal["pages", "stages"] | None


def common_headers(
    headers: Mapping[str, str] | None, api_key: str | None, priority: Priority | None = None
) -> dict[str, str]:
    """The headers of every request, in lower case: key and priority, overridden by the caller's headers.

    `key` None means the key in OCRSVC_API_KEY, "" no key. Raises BadOption, with a message that omits the values.
    """
    for name, value in (headers or {}).items():
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise BadOption(f"The header {name!r} cannot be sent.", "Use visible ASCII on one line.")
    key = (os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key).strip()
    defaults = {PRIORITY_HEADER: priority} if priority is not None else {}
    combined = (defaults | key_header(key) if key else defaults) | dict(headers or {})
    return {name.lower(): value for name, value in combined.items()}


def key_header(key: str) -> dict[str, str]:
    """The header for an API key. Raises BadOption for invalid characters, with a message that omits the key."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise BadOption("The API key must be visible ASCII.", "Send it as it was issued, on one line.")
    return {"Authorization": f"Bearer {key}"}


def body_of(picture: ImageInput) -> bytes:
    """The request body: the file's bytes, or an array as binary PNM. Raises NothingSent, BadOption."""
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if not isinstance(picture, str | os.PathLike):
        return _as_pnm(picture)
    try:
        data = Path(picture).read_bytes()
    except OSError as error:
        raise NothingSent(f"The file cannot be read: {error.strerror}.", "Check its name and permissions.") from error
    if not data:
        raise NothingSent("The file is empty.", "Send an image or a document.")
    return data


def _as_pnm(pixels: NDArray[np.uint8]) -> bytes:
    shape = pixels.shape
    gray = len(shape) == 2
    if str(pixels.dtype) != "uint8" or not (gray or (len(shape) == 3 and shape[2] == 3)):
        raise BadOption(
            f"The array has shape {shape} and dtype {pixels.dtype}.", "Pass (H, W) gray or (H, W, 3) BGR as uint8."
        )
    samples = pixels if gray else pixels[..., ::-1]
    return b"%s\n%d %d\n255\n" % (b"P5" if gray else b"P6", shape[1], shape[0]) + samples.tobytes()


def query_of(options: Mapping[str, object]) -> dict[str, str]:
    """The options as query parameters."""
    return {name: _as_text(value) for name, value in options.items() if value is not None}


def _as_text(value: object) -> str:
    if isinstance(value, float):
        # Fixed-point notation, never an exponent.
        return f"{value:.9f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def headers_of(left_s: float) -> dict[str, str]:
    """The headers of an attempt with `left_s` until the deadline."""
    service_limit_s = left_s - min(left_s * _MARGIN, _MAX_MARGIN_S)
    headers = {"Content-Type": "application/octet-stream", TIMEOUT_HEADER: f"{max(service_limit_s, 0.001):.3f}"}
    # If the program uses OpenTelemetry, the request joins its current trace.
    if (propagate := sys.modules.get("opentelemetry.propagate")) is not None:
        propagate.inject(headers)
    return headers
