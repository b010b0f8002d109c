"""Declaring settings: the base class of groups, one setting, and types that several groups share."""

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

    `title` is its heading in the reference: `class TlsSettings(SettingsGroup, title="TLS")`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def setting(
    default: object,
    description: str,
    unit: str = "",
    *,
    accepted: str | Callable[[], str] = "",
    between: tuple[float, float] | None = None,
    le: float | None = None,
) -> Any:
    """Declare a setting: its default, or a function that returns it, and one sentence of help.

    Names ending in _s or _bytes imply the unit; `accepted`, a text or a function, replaces the type's description.
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
    """A percentage of an amount that is known only where the setting is used."""

    percent: float

    def __str__(self) -> str:
        return f"{self.percent:g}%"


def bytes_of(amount: int | Percentage | None, whole_bytes: int) -> int | None:
    """An amount of memory in bytes; percentages are of `whole_bytes`, and None stays None."""
    return round(amount.percent / 100 * whole_bytes) if isinstance(amount, Percentage) else amount


def split_list(value: object, separator: str = ",") -> object:
    """The parts of a text such as "a, b"; other values unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(separator) if part.strip())
    return value


def _parse_bytes(value: object) -> object:
    """The bytes in "64MiB", "1GB" or "4096"; other values unchanged, for pydantic to refuse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        return value
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def _parse_amount(value: object) -> object:
    """The Percentage in "80%", if it is above 0 and up to 100; else as `_parse_bytes`."""
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
