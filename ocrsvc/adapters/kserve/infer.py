"""Makes a response in tensors of a request in tensors, whichever protocol carried them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ocrsvc.adapters.model_protocols.ocr_model import OcrModel, ServedModel, limit_in, options_in
from ocrsvc.adapters.model_protocols.tensors import (
    JSON_IN,
    JSON_OUT,
    Array,
    BadTensor,
    Shape,
    arrays_of,
    image_of,
    wanted_outputs,
)
from ocrsvc.adapters.paddlex.envelope import infer as infer_as_paddlex
from ocrsvc.serving.work_queue import RequestContext


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference request.

    Attributes:
        name: Of its one input: an image's, or that of PaddleX's JSON.
        elements: Of that input.
        batch: The shape that they came in, as `check_input` gave it.
        outputs: Names asked for; none asks for all.
        parameters: Of the request; reading options and a timeout are taken from them.
    """

    name: str
    elements: Sequence[bytes]
    batch: Shape
    outputs: Sequence[str]
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class InferredArrays:
    """The outputs asked for, and the name and the version of the model that read them."""

    arrays: list[Array]
    name: str
    version: str


def infer_arrays(
    model: OcrModel, served: ServedModel, asked: InferRequest, limit_s: float, context: RequestContext
) -> InferredArrays:
    """The outputs asked for.

    Args:
        model: Reads the images.
        served: What the request names.
        asked: The request.
        limit_s: Seconds within which the client wants its answer, unless the request itself names fewer.
        context: Whether it still waits.

    Raises:
        OcrsvcError: As OcrModel.infer; BadTensor for outputs that there are not; BadOption.
    """
    limit_s = limit_in(asked.parameters, limit_s)
    wanted = wanted_outputs(asked.outputs, asked.name)
    if asked.name == JSON_IN:
        if len(asked.elements) != 1:
            raise BadTensor(f"'{JSON_IN}' takes one request of PaddleX's at a time.", "Send several requests.")
        # As PaddleX's "high-stability serving" puts its JSON into tensors of a model.
        _, answer = infer_as_paddlex(asked.elements[0], model.reader, limit_s, context, served.option)
        return InferredArrays(
            [Array(JSON_OUT, "BYTES", asked.batch, [answer.decode()])], served.name, str(served.number)
        )
    images = [image_of(element, context.share) for element in asked.elements]
    options = replace(options_in(asked.parameters, has_models=model.models.has_repository), model=served.option)
    read = model.infer(images, options, limit_s, context, served)
    return InferredArrays(arrays_of(read.pages, wanted, asked.batch), read.name, read.version)
