"""The name, version and tensors of the model "ocr" that the generic serving protocols offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.errors import CallerError, OcrsvcError

NAME: Final = "ocr"
VERSION: Final = "1"
PLATFORM: Final = "ocrsvc"
MAX_BATCH: Final = 64
"""Images in one request, at most; each takes its own way through the queue."""


class BadTensor(CallerError):
    """A tensor of the request has a wrong name, type, shape or content."""

    code = "bad_tensor"
    title = "A tensor is wrong"


class NotOffered(OcrsvcError):
    """The protocol knows this call or feature; this service does not offer it."""

    status = 501
    code = "not_offered"
    title = "Not offered here"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output.

    Attributes:
        name: As clients write it.
        datatype: Of the Open Inference Protocol.
        dims: Lengths for one image; -1 is as many as there are lines. A batch has the number of images in front.
        help: One sentence.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    help: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims behind those of the batch."""
        return (-1, *self.dims)


IMAGE: Final = Tensor("image", "BYTES", (1,), "An image file, or its base64 text.")
OUTPUTS: Final = (
    Tensor("text", "BYTES", (1,), "All lines of an image, joined by newlines."),
    Tensor("texts", "BYTES", (-1,), "Each line; in a batch, shorter pages are filled up with empty lines."),
    Tensor("scores", "FP32", (-1,), "Each line's confidence, 0 to 1; filled up with 0."),
    Tensor("boxes", "FP32", (-1, 4, 2), "Each line's four corners, x and y in pixels; filled up with 0."),
    Tensor("counts", "INT32", (1,), "How many lines each image has."),
)
JSON_IN: Final = "input"
JSON_OUT: Final = "output"
"""Another input and output of the same model: one request and one answer of PaddleX's, as JSON."""

OUTPUT_NAMES: Final = tuple(tensor.name for tensor in OUTPUTS)


def wanted_outputs(names: Sequence[str], asked: str = IMAGE.name) -> list[str]:
    """The outputs to answer for the input `asked`: those named, each once, or all.

    Raises:
        BadTensor: For one that it has not.
    """
    outputs = (JSON_OUT,) if asked == JSON_IN else OUTPUT_NAMES
    for name in names:
        if name not in outputs:
            raise BadTensor(
                f"unexpected inference output '{name[:100]}' for model '{NAME}'.",
                f"Its outputs are: {', '.join(outputs)}.",
            )
    # Named a thousand times, an output would be a thousand copies.
    return list(dict.fromkeys(names)) or list(outputs)
