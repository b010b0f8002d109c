"""Options of requests, checked by pydantic, whichever format has them in a query, a form or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ocrsvc.errors import BadOption, CallerError
from ocrsvc.http.field_values import as_text, shown

B = TypeVar("B", bound=BaseModel)
M = TypeVar("M", bound="RequestValues")

MESSAGE: Final = "{name} is {value!r}: {why}."
_SHOWN_LETTERS: Final = 40


class RequestValues(BaseModel):
    """Options by their names, or their aliases; names that are not known are left alone."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)


def _off(value: bool) -> bool:  # noqa: FBT001  pydantic calls it
    if value:
        raise PydanticCustomError("value_error", "This service cannot do that")
    return value


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


NotServed = Annotated[bool, AfterValidator(_off)]
"""A flag that asks for what is not done here."""

Listed = BeforeValidator(_listed)
"""Of a list: its values may be in one text, separated by commas."""


def parse_values(kind: type[M], sent: Mapping[str, object], message: str = MESSAGE) -> M:
    """What was sent, as its types; what is empty counts as not sent. Raises BadOption, with the message as a format."""
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
        value = shown(sent.get(str(found["loc"][0])))[:_SHOWN_LETTERS]
        raise BadOption(message.format(name=found["loc"][0], value=value, why=found["msg"])) from None


def parse_object(kind: type[B], sent: object, remedy: str) -> B:
    """An object in JSON as its types. Raises CallerError, which names the member that is wrong."""
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        why = "Input should be an object" if found["type"] == "model_type" else found["msg"]
        raise CallerError(f"{'.'.join(map(str, found['loc']))}: {why}.", remedy) from None
