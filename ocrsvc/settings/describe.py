"""Descriptions of settings for people: variable, unit, help and accepted values, without passwords."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from ocrsvc.settings.group import MemoryAmount, SettingsGroup
from ocrsvc.settings.settings import settings_class

PREFIX: Final = "OCRSVC_"

# Match passwords in addresses such as redis://user:secret@host or redis://host?password=secret, even with / or @.
_PASSWORDS: Final = (re.compile(r"([?&]password=)[^&\s]*", re.IGNORECASE), re.compile(r"(://[^/@\s:]*:)\S*(?=@)"))
# Matches API keys, which an error message would show if they were in a variable with a wrong name.
_API_KEY: Final = re.compile(r"\bocr_\w[\w-]*")


def groups() -> Iterator[type[SettingsGroup]]:
    """The groups of settings, in the order of their fields in `settings_class()`."""
    for base in reversed(settings_class().__mro__):
        if SettingsGroup in base.__bases__:
            yield base


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def unit_of(name: str) -> str:
    """The unit of a setting; empty if it has none."""
    ending = name.rpartition("_")[2]
    return _declared(name, "unit") or (ending if ending in {"s", "bytes"} else "")


def help_of(name: str) -> str:
    """The help of a setting, one sentence."""
    return settings_class().model_fields[name].description or ""


def accepted(name: str) -> str:
    """The accepted values of a setting, such as "a whole number from 1 to 256" or "one of cpu, cuda, auto"."""
    field = settings_class().model_fields[name]
    return (_declared(name, "accepted") or _describe_kind(name, _plain_type(field))) + _describe_bounds(field)


def is_secret(name: str) -> bool:
    """Whether a setting's value must never be shown."""
    return name in settings_class().model_fields and _plain_type(settings_class().model_fields[name]) is SecretStr


def without_passwords(text: str) -> str:
    """Replace passwords in addresses, and API keys, by stars."""
    for place in _PASSWORDS:
        text = place.sub(r"\1***", text)
    return _API_KEY.sub("ocr_***", text)


def _declared(name: str, key: str) -> str:
    """The `unit` or `accepted` text (see `setting`) in a setting's declaration; empty if it has none."""
    extra: Any = settings_class().model_fields[name].json_schema_extra or {}
    text = extra.get(key, "")
    return str(text() if callable(text) else text)


def _plain_type(field: FieldInfo) -> Any:
    """The type of a field, without the alternative None."""
    if get_origin(field.annotation) in (Union, UnionType):
        return next(part for part in get_args(field.annotation) if part is not NoneType)
    return field.annotation


def _describe_kind(name: str, kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if kind == MemoryAmount:
        return "bytes, such as 4096, 64MiB or 1GB, or a percentage, such as 80%"
    if name.endswith("_bytes"):
        return "bytes, such as 4096, 64MiB or 1GB,"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    return words.get(kind, "names, separated by commas (in the file a list)")


def _describe_bounds(field: FieldInfo) -> str:
    """The field's bounds as text such as " from 1 to 256", with a leading space."""
    names = ("ge", "gt", "le")
    bounds = {name: getattr(bound, name) for name in names for bound in field.metadata if hasattr(bound, name)}
    words = {"ge": " from {}", "gt": " above {}", "le": " to {}" if "ge" in bounds else " up to {}"}
    return "".join(words[name].format(bound) for name, bound in bounds.items())
