"""The log of one owner, as far as it was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from ocrsvc.batch.ledger.entries import PAGE, FrameKind
from ocrsvc.batch.ledger.owner import Owner


@dataclass(slots=True)
class OwnerLog:
    """What one owner said.

    Attributes:
        name: Of the log in the store.
        owner: Who writes it; None before its first frame was read.
        facts: What it said of itself: its version, its reader.
        names: Of workers and reasons, by number.
        read_to: Bytes that were read.
        begun: Pages that it began to read, and has said nothing of since.
        alone: The last page that it read with nothing beside it.
        results: The number of the results log that it named last.
        has_ended: It has ended in order, and says no more.
        is_over: Nothing more comes: it has ended, or its process has.
    """

    name: str
    owner: Owner | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=lambda: [""])
    read_to: int = 0
    begun: set[int] = field(default_factory=set)
    alone: int | None = None
    results: int = 0
    has_ended: bool = False
    is_over: bool = False

    def take(self, kind: int, payload: bytes) -> bool:
        """Note what a frame says of the owner itself; False where there is more to it."""
        match kind:
            case FrameKind.OWNER:
                self.facts = orjson.loads(payload)
                self.owner = Owner.of(self.facts.pop("owner"))
            case FrameKind.NAMES:
                self.names += orjson.loads(payload)
            case FrameKind.BEGUN:
                self.begun.update(np.frombuffer(payload, PAGE).tolist())
            case FrameKind.BEGUN_ALONE:
                self.alone = int(np.frombuffer(payload, PAGE)[0])
                self.begun.add(self.alone)
            case FrameKind.ENDED:
                self.has_ended = self.is_over = True
                return False
            case _:
                return False
        return True
