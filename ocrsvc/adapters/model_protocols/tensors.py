"""Tensors of the model "ocr" in the serving protocols: input tensors to images, pages to output tensors."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import BadBase64, CallerError, NothingSent, OcrsvcError
from ocrsvc.formats.boxes import to_boxes
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.parsed_body import is_image
from ocrsvc.results import Page
from ocrsvc.serving.memory_budget import Share

NAME: Final = "ocr"
VERSION: Final = "1"
PLATFORM: Final = "ocrsvc"
MAX_BATCH: Final = 64
"""Maximum images per request; each is queued separately."""

_LENGTH: Final = struct.Struct("<I")
_MAX_RANK: Final = 8

Shape = tuple[int, ...]
NumberArray = NDArray[np.float32] | NDArray[np.int32]


class BadTensor(CallerError, code="bad_tensor", title="A tensor is wrong"):
    """A tensor has a wrong name, type, shape or content."""


class NotOffered(OcrsvcError, status=501, code="not_offered", title="Not offered here"):
    """The service does not implement a call or feature of the protocol."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of the Open Inference Protocol; `dims` is the shape per image, where -1 is the line count."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    help: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape for a batch of any number of images."""
        return (-1, *self.dims)


IMAGE: Final = Tensor("image", "BYTES", (1,), "An image file, or its base64 text.")
PIXELS: Final = "UINT8"
"""The input `image` also accepts this datatype: one image as RGB pixels, in the shape [1, height, width, 3]."""

LANGUAGE: Final = "lang_type"
"""An additional input: the language of the text, BYTES with one element."""

OUTPUTS: Final = (
    Tensor("text", "BYTES", (1,), "All lines of an image, joined by newlines."),
    Tensor("texts", "BYTES", (-1,), "Each line; in a batch, shorter pages are padded with empty lines."),
    Tensor("scores", "FP32", (-1,), "Each line's confidence, 0 to 1; padded with 0."),
    Tensor("boxes", "FP32", (-1, 4, 2), "Each line's four corners, x and y in pixels; padded with 0."),
    Tensor("counts", "INT32", (1,), "The number of lines of each image."),
)
JSON_IN: Final = "input"
JSON_OUT: Final = "output"
"""Names of an alternative input and output of the model: a PaddleX request and its response, as JSON."""

OUTPUT_NAMES: Final = tuple(tensor.name for tensor in OUTPUTS)
PIXEL_OUTPUTS: Final = ("boxes", "txts", "scores")
"""The outputs for an image sent as pixels; without a batch dimension, as docling's OCR expects them."""


def requested_outputs(names: Sequence[str], outputs: Sequence[str] = OUTPUT_NAMES) -> list[str]:
    """Check requested output names, and drop duplicates; without names, return all `outputs`. Raises BadTensor."""
    for name in names:
        if name not in outputs:
            text = f"unexpected inference output '{name[:100]}' for model '{NAME}'."
            raise BadTensor(text, f"Its outputs are: {', '.join(outputs)}.")
    # Duplicates would multiply the response.
    return list(dict.fromkeys(names)) or list(outputs)


@dataclass(frozen=True, slots=True)
class Array:
    """One output of a batch; `values` are a flat list for BYTES, else a little-endian, C-contiguous array."""

    name: str
    datatype: str
    shape: Shape
    values: list[str] | NumberArray


def check_input(name: str, datatype: str, shape: Sequence[Any]) -> Shape:
    """Check an input and return its shape, whose product is the number of elements. Raises BadTensor."""
    if name == IMAGE.name and datatype == PIXELS:
        return _check_pixels(shape)
    if name not in (IMAGE.name, JSON_IN, LANGUAGE):
        raise BadTensor(f"unexpected inference input '{name[:100]}' for model 'ocr'.", f"Its input is {IMAGE.name!r}.")
    if datatype != IMAGE.datatype:
        raise BadTensor(
            f"inference input '{name}' data-type is '{datatype[:40]}', but model 'ocr' expects '{IMAGE.datatype}'.",
            "Send the bytes of the image file.",
        )
    if len(shape) > _MAX_RANK or not all(type(length) is int and 0 <= length <= 2**31 for length in shape):
        raise BadTensor(f"The shape of '{name}' is not a list of at most {_MAX_RANK} lengths.", "Send [1].")
    count = math.prod(shape)
    if not 1 <= count <= MAX_BATCH:
        text = f"The shape of '{name}' has {count} images; accepted are 1 to {MAX_BATCH}."
        raise BadTensor(text, "Send several requests.")
    return tuple(shape)


def _check_pixels(shape: Sequence[Any]) -> Shape:
    is_image = len(shape) == 4 and all(type(length) is int and 0 < length <= 2**31 for length in shape)
    if not is_image or (shape[0], shape[3]) != (1, 3):
        raise BadTensor(
            f"The shape of the pixels in '{IMAGE.name}' is not [1, height, width, 3].",
            "Send one image per request, in RGB, or image files as BYTES.",
        )
    return tuple(shape)


def pixels_to_file(pixels: bytes | memoryview | None, shape: Shape) -> bytes:
    """Convert RGB pixels to a PNM file; its memory is counted by the caller. Raises BadTensor, also for None."""
    if pixels is None:
        raise BadTensor(
            f"The pixels of '{IMAGE.name}' are numbers in the request.",
            "Send them as binary data (docling: use_binary_data=True).",
        )
    _, height, width, channels = shape
    if len(pixels) != height * width * channels:
        text = f"'{IMAGE.name}' has {len(pixels)} bytes, but its shape {list(shape)} has {math.prod(shape)} values."
        raise BadTensor(text, "Send one byte for each red, green and blue value.")
    return b"".join((b"P6\n%d %d\n255\n" % (width, height), pixels))


def unpack_elements(raw: bytes | memoryview, count: int) -> list[bytes]:
    """Split a BYTES tensor: each element follows its little-endian uint32 length.

    The length before a single image may be missing, because perf_analyzer omits it.
    """
    view, at, elements = memoryview(raw), 0, []
    for _ in range(count):
        if len(view) - at < _LENGTH.size:
            break
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size + length
        elements.append(bytes(view[at - length : at]))
    if len(elements) != count or at != len(view):
        if count == 1 and is_image(bytes(view[:64])):
            return [bytes(view)]
        raise BadTensor(
            f"The {len(view)} bytes of '{IMAGE.name}' are not {count} elements with 4-byte lengths.",
            "Write each element's length before it, as a little-endian uint32.",
        )
    return elements


def image_of(element: bytes, share: Share) -> bytes:
    """The image file in an element; base64 is decoded, and the result counted in the memory share."""
    if is_image(element):
        return element
    try:
        return decode_base64(element, share)
    except (BadBase64, NothingSent):
        # Neither an image nor base64: the image decoder reports that.
        return element


def arrays_of(pages: Sequence[Page], names: Sequence[str], batch: Shape) -> list[Array]:
    """Make the output tensors `names` from the pages of a batch; `batch` is the shape of the tensor with its images."""
    return [_array(name, pages, batch) for name in names]


def arrays_of_pixels(page: Page, names: Sequence[str]) -> list[Array]:
    """Output tensors of one image; `names` are from PIXEL_OUTPUTS."""
    arrays = arrays_of([page], ["texts" if name == "txts" else name for name in names], (1,))
    return [replace(array, name=name, shape=array.shape[1:]) for name, array in zip(names, arrays, strict=True)]


def pack(array: Array) -> bytes:
    """Pack the values of an output tensor into the raw bytes of the protocols."""
    if not isinstance(array.values, list):
        return array.values.tobytes()
    pieces: list[bytes] = []
    for text in array.values:
        data = text.encode()
        pieces += (_LENGTH.pack(len(data)), data)
    return b"".join(pieces)


def _array(name: str, pages: Sequence[Page], batch: Shape) -> Array:
    counts = [len(page.lines) for page in pages]
    length = max(counts)
    if name == "text":
        return Array(name, "BYTES", batch, [page.text for page in pages])
    if name == "counts":
        return Array(name, "INT32", batch, np.array(counts, "<i4").reshape(batch))
    if name == "texts":
        padded = [[line.text for line in page.lines] + [""] * (length - len(page.lines)) for page in pages]
        return Array(name, "BYTES", (len(pages), length), list(chain.from_iterable(padded)))
    has_boxes = name == "boxes"
    values = np.zeros((len(pages), length, *((4, 2) if has_boxes else ())), "<f4")
    for row, page in zip(values, pages, strict=True):
        row[: len(page.lines)] = to_boxes(page.lines) if has_boxes else [line.confidence for line in page.lines]
    return Array(name, "FP32", values.shape, values)
