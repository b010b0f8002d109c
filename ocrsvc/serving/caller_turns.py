"""Turns of callers: one that brings many items does not keep another's item waiting for all of them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class CallerTurns(Generic[T]):
    """Items of callers, who take turns: each has one taken, then the next. For one thread at a time."""

    def __init__(self) -> None:
        # Who is next comes first.
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def put(self, caller: str, item: T) -> None:
        """Add an item behind those of the same caller."""
        self._lines.setdefault(caller, deque()).append(item)

    def take(self) -> T:
        """The first item of the caller whose turn it is. Raises IndexError where there is none."""
        if not self._lines:
            raise IndexError("nothing waits")
        caller, line = self._lines.popitem(last=False)
        item = line.popleft()
        if line:
            self._lines[caller] = line
        return item

    def remove(self, caller: str, item: T) -> bool:
        """Take an item out of turn; False where it was taken already."""
        line = self._lines.get(caller, deque())
        if item not in line:
            return False
        line.remove(item)
        if not line:
            del self._lines[caller]
        return True

    def count(self, caller: str) -> int:
        """How many items of this caller wait."""
        return len(self._lines.get(caller, ()))

    def __len__(self) -> int:
        """How many items wait."""
        return sum(map(len, self._lines.values()))
