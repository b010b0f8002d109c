"""Makes a response in tensors of a request in tensors, whichever protocol carried them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocrsvc.adapters.paddlex.envelope import infer as infer_as_paddlex
from ocrsvc.model_api.metadata import JSON_IN, JSON_OUT, BadTensor, wanted_outputs
from ocrsvc.model_api.model import OcrModel, TimeLimit, options_in
from ocrsvc.model_api.tensors import Array, Shape, arrays_of, image_of


def infer_arrays(
    model: OcrModel,
    name: str,
    elements: Sequence[bytes],
    batch: Shape,
    names: list[str],
    parameters: Mapping[str, object],
    time_limit: TimeLimit,
) -> list[Array]:
    """The outputs of these names, or all of them.

    Args:
        model: Reads the images.
        name: Of the input: an image's, or that of PaddleX's JSON.
        elements: Those of the input.
        batch: Shape of the input, as `check_input` gave it.
        names: Outputs asked for; none is all.
        parameters: Of the request; reading options are taken from them.
        time_limit: Of the client.

    Raises:
        OcrsvcError: As OcrModel.infer; BadTensor for outputs that there are not; BadOption.
    """
    wanted = wanted_outputs(names, name)
    if name == JSON_IN:
        if len(elements) != 1:
            raise BadTensor(f"'{JSON_IN}' takes one request of PaddleX's at a time.", "Send several requests.")
        return [Array(JSON_OUT, "BYTES", batch, [_answered_as_paddlex(model, elements[0], time_limit).decode()])]
    pages = model.infer(
        [image_of(element, time_limit.context.share) for element in elements], options_in(parameters), time_limit
    )
    return arrays_of(pages, wanted, batch)


def _answered_as_paddlex(model: OcrModel, body: bytes, time_limit: TimeLimit) -> bytes:
    """PaddleX's JSON for PaddleX's JSON, as its "high-stability serving" puts both into tensors of a model."""
    return infer_as_paddlex(body, model.reader, time_limit.left_s, time_limit.context)[1]
