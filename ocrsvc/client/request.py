"""Builds a request to the native API from an image and its options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict

from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.settings.api_key import API_KEY_VARIABLE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PATH: Final = "/v1/ocr"
MODELS_PATH: Final = "/v1/ocr/models"
TIMEOUT_HEADER: Final = "X-Request-Timeout"
PRIORITY_HEADER: Final = "X-Priority"
# Left over of the deadline for the response to arrive.
_MARGIN: Final = 0.05
_LONGEST_MARGIN_S: Final = 0.5
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"([!-~]([\t -~]*[!-~])?)?")


ImageInput: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | NDArray[np.uint8]"
"""A path; the bytes of an image file; or an array, (H, W) gray or (H, W, 3) BGR, uint8."""


Priority: TypeAlias = Literal["interactive", "batch"]
"""Whose turn it is when many wait: interactive requests go first."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent: to a path of the service, with a query, a body, which may be empty, and headers of its own."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


class Options(TypedDict, total=False):
    """The options of a reading, as docs/api.md describes them; None is the same as left out."""

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
    tier: Literal["tiny", "small", "medium"] | None
    lang: str | None
    lines: bool | None
    pages: str | None
    partial: bool | None
    priority: Priority | None
    timing: Literal["pages", "stages"] | None


def own_headers(
    headers: Mapping[str, str] | None, api_key: str | None, priority: Priority | None = None
) -> dict[str, str]:
    """What goes with every request, in small letters: the caller's own headers, and key and priority where it has none.

    A key that is None is what the environment holds; an empty one is none. Raises BadOption, without the values.
    """
    for name, value in (headers or {}).items():
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise BadOption(f"The header {name!r} cannot be sent.", "Use visible ASCII on one line.")
    key = (os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key).strip()
    made = {PRIORITY_HEADER: priority} if priority is not None else {}
    sent = (made | key_header(key) if key else made) | dict(headers or {})
    return {name.lower(): value for name, value in sent.items()}


def key_header(key: str) -> dict[str, str]:
    """The header that carries a key. Raises BadOption, without the key, when no key looks like this."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise BadOption("The API key holds other signs than visible ASCII.", "Send it as `ocrsvc keys add` printed it.")
    return {"Authorization": f"Bearer {key}"}


def body_of(picture: ImageInput) -> bytes:
    """The bytes to send: those of the file, or the array as binary PNM. Raises NothingSent, BadOption."""
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if not isinstance(picture, str | os.PathLike):
        return _as_pnm(picture)
    try:
        return Path(picture).read_bytes()
    except OSError as error:
        raise NothingSent(f"{picture} cannot be read: {error.strerror}.", "Check its name and permissions.") from error


def _as_pnm(pixels: NDArray[np.uint8]) -> bytes:
    shape = pixels.shape
    gray = len(shape) == 2
    if str(pixels.dtype) != "uint8" or not (gray or (len(shape) == 3 and shape[2] == 3)):
        raise BadOption(
            f"The array has the shape {shape} and the type {pixels.dtype}.",
            "Pass (H, W) gray or (H, W, 3) in the order blue, green, red, as uint8.",
        )
    samples = pixels if gray else pixels[..., ::-1]
    return b"%s\n%d %d\n255\n" % (b"P5" if gray else b"P6", shape[1], shape[0]) + samples.tobytes()


def query_of(options: Mapping[str, object]) -> dict[str, str]:
    """The options as query parameters."""
    return {name: _as_text(value) for name, value in options.items() if value is not None}


def _as_text(value: object) -> str:
    if isinstance(value, float):
        # Without an exponent, however small.
        return f"{value:.9f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def headers_of(left_s: float) -> dict[str, str]:
    """What goes with a try that is worth waiting for so many seconds."""
    worth_s = left_s - min(left_s * _MARGIN, _LONGEST_MARGIN_S)
    headers = {"Content-Type": "application/octet-stream", TIMEOUT_HEADER: f"{max(worth_s, 0.001):.3f}"}
    # A program that uses OpenTelemetry has it loaded: the request belongs to its current trace.
    if (propagate := sys.modules.get("opentelemetry.propagate")) is not None:
        propagate.inject(headers)
    return headers
