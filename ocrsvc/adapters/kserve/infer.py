"""Makes a response in tensors of a request in tensors, whichever protocol carried them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocrsvc.adapters.paddlex.envelope import infer as infer_as_paddlex
from ocrsvc.model_api.metadata import JSON_IN, JSON_OUT, BadTensor, wanted_outputs
from ocrsvc.model_api.model import OcrModel, Wait, options_in
from ocrsvc.model_api.tensors import Array, Shape, arrays_of, image_of


def infer_arrays(
    model: OcrModel,
    name: str,
    elements: Sequence[bytes],
    batch: Shape,
    names: list[str],
    parameters: Mapping[str, object],
    wait: Wait,
) -> list[Array]:
    """The outputs of these names, or all of them.

    Args:
        model: Reads the images.
        name: Of the input: an image's, or that of PaddleX's JSON.
        elements: Those of the input.
        batch: Shape of the input, as `check_input` gave it.
        names: Outputs asked for; none is all.
        parameters: Of the request; reading options are taken from them.
        wait: Of the client.

    Raises:
        OcrsvcError: As OcrModel.infer; BadTensor for outputs that there are not; BadOption.
    """
    wanted = wanted_outputs(names, name)
    if name == JSON_IN:
        if len(elements) != 1:
            raise BadTensor(f"'{JSON_IN}' takes one request of PaddleX's at a time.", "Send several requests.")
        return [Array(JSON_OUT, "BYTES", batch, [_answered_as_paddlex(model, elements[0], wait).decode()])]
    pages = model.infer([image_of(element, wait.context.share) for element in elements], options_in(parameters), wait)
    return arrays_of(pages, wanted, batch)


def _answered_as_paddlex(model: OcrModel, body: bytes, wait: Wait) -> bytes:
    """PaddleX's JSON for PaddleX's JSON, as its "high-stability serving" puts both into tensors of a model."""
    return infer_as_paddlex(body, model.reader, wait.left_s, wait.context)[1]
