"""The base class of a group of settings, and how a group declares one setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class SettingsGroup(BaseModel):
    """Settings that belong together; frozen. `Settings` inherits from every group (`ocrsvc.settings.settings`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    title: ClassVar[str]
    """The heading of the group in the reference."""


def setting(
    default: object,
    description: str,
    unit: str = "",
    *,
    accepted: str | Callable[[], str] = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> Any:
    """The declaration of one setting.

    Args:
        default: The value when none is given, or a function that makes it.
        description: One sentence of help.
        unit: Of a number.
        accepted: What is accepted, in words, where type and bounds do not say it; or a function that makes them.
        ge, gt, le: Bounds of a number.
    """
    extra: dict[str, Any] = {"unit": unit, "accepted": accepted}
    return Field(
        **({"default_factory": default} if callable(default) else {"default": default}),
        description=description,
        json_schema_extra=extra,
        ge=ge,
        gt=gt,
        le=le,
    )
