"""Declaration of settings: the base class of groups, a field function, and types that several groups share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, PlainSerializer

T = TypeVar("T")

_BYTE_UNITS: Final = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}


class SettingsGroup(BaseModel):
    """A frozen group of settings. `Settings` inherits from every group (`ocrsvc.settings.settings`).

    `title` is the group's heading in the reference: `class TlsSettings(SettingsGroup, title="TLS")`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def setting(
    default: object,
    description: str,
    unit: str = "",
    *,
    accepted: str | Callable[[], str] = "",
    between: tuple[float, float] | None = None,
    le: float | None = None,
) -> Any:
    """Declare a setting by its default, or a function that returns the default, and one sentence of help.

    A name that ends in _s or _bytes implies the unit; `accepted`, a text or a function, overrides the description of
    accepted values.
    """
    ge, le = between or (None, le)
    return Field(
        **({"default_factory": default} if callable(default) else {"default": default}),
        description=description,
        json_schema_extra={"unit": unit, "accepted": accepted},  # type: ignore[dict-item]
        ge=ge,
        le=le,
    )


@dataclass(frozen=True, slots=True)
class Percentage:
    """A percentage, whose base amount is known only by the code that uses the setting."""

    percent: float

    def __str__(self) -> str:
        return f"{self.percent:g}%"


def bytes_of(amount: int | Percentage | None, whole_bytes: int) -> int | None:
    """Convert an amount of memory to bytes; percentages refer to `whole_bytes`, and None stays None."""
    return round(amount.percent / 100 * whole_bytes) if isinstance(amount, Percentage) else amount


def split_list(value: object, separator: str = ",") -> object:
    """Split a text such as "a, b" into stripped, non-empty parts; return other values unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(separator) if part.strip())
    return value


def _parse_bytes(value: object) -> object:
    """Parse "64MiB", "1GB" or "4096" as bytes; return other values unchanged, so that pydantic refuses them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        return value
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def _parse_amount(value: object) -> object:
    """Parse "80%" as a Percentage if it is above 0 and up to 100, other text as `_parse_bytes` does."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", str(value).strip())
    if match is None:
        return _parse_bytes(value)
    return Percentage(float(match[1])) if 0 < float(match[1]) <= 100 else value


ByteCount = Annotated[int, BeforeValidator(_parse_bytes)]
MemoryAmount = Annotated[
    Annotated[int, Field(ge=0, le=2**50)] | Annotated[InstanceOf[Percentage], PlainSerializer(str)],
    BeforeValidator(_parse_amount),
]
ListOf = Annotated[tuple[T, ...], BeforeValidator(split_list)]
Names = ListOf[str]
