"""Settings that earlier versions had and this one has not, and what does their work now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Replacement:
    """What an operator should set instead.

    Attributes:
        setting: The name of the setting that does the work now.
        difference: One sentence: how it differs.
    """

    setting: str
    difference: str


_ONE_ACCOUNT: Final = "It counts everything that a request holds, its body and its waiting images together."
REPLACED: Final[Mapping[str, Replacement]] = {
    "body_bytes": Replacement("request_memory_bytes", _ONE_ACCOUNT),
    "queue_bytes": Replacement("request_memory_bytes", _ONE_ACCOUNT),
}
