"""Settings of the API adapters: which foreign wire formats are spoken, and at which of their usual ports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo

from ocrsvc.registry import adapters
from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import Names


def _check_adapters(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once; "none" alone is none. Raises ValueError for one that is not spoken."""
    if names == ("none",):
        return ()
    if unknown := set(names) - set(adapters()):
        raise ValueError(f"unknown dialects {sorted(unknown)}")
    return tuple(dict.fromkeys(names))


def _check_usual_ports(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """The names, if each is spoken here and has a usual port, and `bind` has a host for it. Raises ValueError."""
    names = _check_adapters(names)
    portless = [name for name in names if adapters()[name].port is None or name not in info.data.get("dialects", names)]
    if portless or (names and str(info.data.get("bind", "")).startswith("unix:")):
        raise ValueError("no port can be bound for them")
    return names


AdapterNames = Annotated[Names, AfterValidator(_check_adapters)]
UsualPorts = Annotated[Names, AfterValidator(_check_usual_ports)]


class AdapterSettings(SettingsGroup):
    """The API adapters. `usual_ports` is checked against `bind`, so ServiceSettings come first."""

    title = "API adapters"

    dialects: AdapterNames = setting(
        lambda: tuple(adapters()),
        "Foreign wire formats that are spoken beside the native one; none switches them all off.",
        accepted=lambda: "none, or names separated by commas (in the file a list) out of " + ", ".join(adapters()),
    )
    usual_ports: UsualPorts = setting(
        (),
        "Dialects whose usual port is listened on as well, at the host of bind, for clients that have it hard-wired; "
        "gunicorn's -b wins.",
        accepted=lambda: (
            "names of dialects that are on, separated by commas (in the file a list), out of "
            + ", ".join(name for name, entry in adapters().items() if entry.port)
            + "; and no unix: address in bind"
        ),
    )
    trwebocr_boxes: Literal["rect", "poly"] = setting(
        "rect",
        "How /api/tr-run/ answers: rect as TrWebOCR does, poly as chineseocr_lite does, which has the same address.",
    )
