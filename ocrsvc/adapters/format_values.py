"""What several formats do alike: codes of errors, options as pydantic models, lines with corners, answers in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ocrsvc.errors import BadOption, CallerError
from ocrsvc.formats.boxes import Boxed, to_boxes, to_scores, whole
from ocrsvc.http.field_values import as_text, shown
from ocrsvc.serving.memory_budget import Share

B = TypeVar("B", bound=BaseModel)
M = TypeVar("M", bound="RequestValues")

_SHOWN_CHARACTERS: Final = 40


class Coded(CallerError):
    """An error with a code of the original that our classes do not tell apart."""

    def __init__(self, code: int | str, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.original_code: Any = code


def code_in(codes: Sequence[tuple[type[Exception], Any]], error: BaseException, not_json: Any) -> Any:
    """The original's code for an error: the first that fits; None where `codes` lack it."""
    if isinstance(error, Coded):
        return error.original_code
    if type(error) is CallerError:
        return not_json
    return next((code for kind, code in codes if isinstance(error, kind)), None)


class RequestValues(BaseModel):
    """Options by their names, or their aliases; unknown names are ignored. `message` tells of a wrong value."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)
    message: ClassVar[str] = "{name} is {value!r}: {why}."


def _off(value: bool) -> bool:  # noqa: FBT001  pydantic calls it
    if value:
        raise PydanticCustomError("value_error", "This service cannot do that")
    return value


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NotServed = Annotated[bool, AfterValidator(_off)]
"""A flag that asks for what is not done here."""

Listed = BeforeValidator(_listed)
"""For a list whose values may be in one text, separated by commas."""


def parse_values(kind: type[M], sent: Mapping[str, object]) -> M:
    """The sent values as a model; empty ones count as not sent. Raises BadOption."""
    values: dict[str, Any] = {}
    for field, about in kind.model_fields.items():
        value = sent.get(name := about.alias or field)
        if value is not None and not isinstance(value, list | dict):
            # As a form has it, and bounded before pydantic looks at it.
            value = as_text(value).strip() or None
        if value is not None:
            values[name] = value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[0]
        value = shown(sent.get(str(found["loc"][0])))[:_SHOWN_CHARACTERS]
        raise BadOption(kind.message.format(name=found["loc"][0], value=value, why=found["msg"])) from None


def parse_object(kind: type[B], sent: object, remedy: str) -> B:
    """A JSON object as a model. Raises CallerError, which names the wrong member."""
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        why = "Input should be an object" if found["type"] == "model_type" else found["msg"]
        raise CallerError(f"{'.'.join(map(str, found['loc']))}: {why}.", remedy) from None


def placed_texts(
    texts: Sequence[Boxed], box_digits: int | None = None, score_digits: int = 5, scale: float = 1.0
) -> Iterator[tuple[str, float, list[list[Any]]]]:
    """Text, confidence and corners of each line or word; corners in whole pixels without `box_digits`."""
    boxes = to_boxes(texts) * scale
    corners = whole(boxes) if box_digits is None else boxes.round(box_digits)
    return zip([text.text for text in texts], to_scores(texts, score_digits), corners.tolist(), strict=True)


class HeldOutput(io.BytesIO):
    """An output in memory; its bytes and the copy that `taken` makes are counted in a share before they are kept."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def write(self, data: Any, /) -> int:
        """Keep all of the bytes. Raises QueueFull, BodyTooLarge."""
        self._share.take(2 * len(data))
        return super().write(data)

    def taken(self) -> bytes:
        """All that was written; the share is free of it, because the response counts it again."""
        self._share.give_back(2 * self.tell())
        return self.getvalue()
