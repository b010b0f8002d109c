"""Bounds what is held at once: bytes by all requests together, and requests by one caller. Knows no HTTP."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address, IPv6Network
from typing import Final, Self

from ocrsvc.errors import BodyTooLarge, QueueFull, TooManyAtOnce
from ocrsvc.serving.request_guard import RequestGuard

_CUSTOMER_BITS: Final = 64


class Budget:
    """Bytes that all may hold together, and hold now. All methods may be called from any thread."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int, most_bytes: float | None = None) -> bool:
        """Hold so many bytes more, and never wait for them: whether they were free, below `most_bytes` in all."""
        with self._lock:
            if self.held_bytes + size_bytes > (self.total_bytes if most_bytes is None else most_bytes):
                return False
            self.held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Hold so many bytes less."""
        with self._lock:
            self.held_bytes -= size_bytes


class Share:
    """What one request holds of a budget, without its parts, until its answer has left. For any thread."""

    def __init__(self, budget: Budget, whole: Budget | None = None) -> None:
        self._budget = budget
        # What this share and all its parts hold: as much as there is, at most.
        self._whole = whole or Budget(budget.total_bytes)
        self._lock = threading.Lock()
        self.held_bytes = 0

    @property
    def budget_bytes(self) -> int:
        """What all requests together may hold."""
        return self._budget.total_bytes

    def part(self) -> Share:
        """For what may be needed longer than the request lasts: it is not released with this share."""
        return Share(self._budget, self._whole)

    def take(self, size_bytes: int, part: float = 1.0) -> None:
        """Hold so many bytes more; asked before they are allocated.

        Only that `part` of all memory may be filled so, but a request that is alone may fill it all. Raises
        BodyTooLarge where this request alone would hold more than all requests may, QueueFull where it is not free now.
        """
        if not self._whole.take(size_bytes):
            raise BodyTooLarge(
                f"This request needs more memory than the {self._budget.total_bytes} bytes that all requests to a "
                "worker may hold (OCRSVC_REQUEST_MEMORY_BYTES).",
                "Send fewer or smaller images at once, or ask the operator to raise the limit.",
            )
        is_alone = self._budget.held_bytes <= self._whole.held_bytes - size_bytes
        if not self._budget.take(size_bytes, self._budget.total_bytes * (1.0 if is_alone else part)):
            self._whole.give_back(size_bytes)
            raise QueueFull(
                "The requests under way hold all the memory that they may hold (OCRSVC_REQUEST_MEMORY_BYTES).",
                "Send the request again after the time that Retry-After names.",
            )
        with self._lock:
            self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Hold so many bytes less; nothing where the request is over already, and what it held was released."""
        with self._lock:
            size_bytes = min(size_bytes, self.held_bytes)
            self.held_bytes -= size_bytes
        self._whole.give_back(size_bytes)
        self._budget.give_back(size_bytes)

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Hold so many bytes more inside the block. Raises as `take`."""
        self.take(size_bytes)
        try:
            yield
        finally:
            self.give_back(size_bytes)

    def split(self, size_bytes: int) -> Share:
        """Hand over so many of the bytes that it holds to a share of their own."""
        other = Share(self._budget)
        self._whole.give_back(size_bytes)
        with self._lock:
            self.held_bytes -= size_bytes
        other._whole.take(size_bytes)
        other.held_bytes = size_bytes
        return other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give everything back; a second time changes nothing. A `with` block ends with it."""
        self.give_back(sys.maxsize)


def unlimited() -> Share:
    """A share of an unlimited budget of its own: for work that no request brought."""
    return Share(Budget(sys.maxsize))


class Callers:
    """Counts the requests that each caller has under way: `most`, or without a limit for 0. For any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, name: str) -> None:
        """One more of this caller, to be followed by `leave`. Raises TooManyAtOnce."""
        with self._lock:
            if self._most and self._under_way[name] >= self._most:
                raise TooManyAtOnce(
                    f"This caller has {self._most} requests under way here, the most that it may "
                    "(OCRSVC_CALLER_REQUESTS).",
                    "Wait for an answer before the next request.",
                )
            self._under_way[name] += 1

    def leave(self, name: str) -> None:
        """One less of this caller."""
        with self._lock:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    def __len__(self) -> int:
        return len(self._under_way)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What all requests to one process share, whichever protocol brings them; without a guard none is on record."""

    memory: Budget
    callers: Callers
    guard: RequestGuard | None = None


def network_of(address: str) -> str:
    """The network of an address: of IPv6 the /64, for each customer of a provider has at least that; else itself."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except AddressValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((parsed, _CUSTOMER_BITS), strict=False))
