"""Settings of API keys: where they are stored, and the log of what operators do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

from ocrsvc.settings.group import SettingsGroup, setting

_STORE: Final = re.compile(r"sqlite:[^\s?]\S*|rediss?://[^\s/]+(/\d*)?(\?\S*)?|unix://\S+")


def _check_store(value: str) -> str:
    """The address itself, if it is one of a store of keys; raises ValueError."""
    if not _STORE.fullmatch(value):
        raise ValueError("no store of keys")
    return value


StoreAddress = Annotated[str, AfterValidator(_check_store)]


class AccessSettings(SettingsGroup):
    """API keys and the audit log."""

    title = "Access"

    keys: StoreAddress | None = setting(
        None,
        "Where API keys and what is used of them are stored; once it is set everything but health wants a key, also "
        "while there is none.",
        accepted="sqlite:PATH, or for several machines redis://host:6379/0, rediss://… (over TLS) or unix://…",
    )
    audit_log: Path | None = setting(
        None,
        "File to which a line of JSON is added for each key that is added, revoked or rotated, and for each action of "
        "an operator; by default beside the file of the keys, its name with .audit.jsonl added, and none with Redis.",
    )
