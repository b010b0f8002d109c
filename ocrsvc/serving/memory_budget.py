"""Limits the memory of all requests together, and the number of concurrent requests per caller."""

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

_IPV6_NETWORK_BITS: Final = 64


class Budget:
    """A number of bytes that may be used at most, and how many are in use now; thread-safe."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int, max_bytes: float | None = None) -> bool:
        """Take bytes without waiting; False if more than `max_bytes` (default: the total) would then be in use."""
        with self._lock:
            if self.held_bytes + size_bytes > (self.total_bytes if max_bytes is None else max_bytes):
                return False
            self.held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Return bytes to the budget."""
        with self._lock:
            self.held_bytes -= size_bytes


class Share:
    """The bytes of a budget that one request uses until its answer is sent; thread-safe.

    `held_bytes` excludes the bytes of the shares that `part` makes, which have their own `held_bytes`.
    """

    def __init__(self, budget: Budget, whole: Budget | None = None) -> None:
        self._budget = budget
        # Counts the bytes of this share and of all its parts.
        self._whole = whole or Budget(budget.total_bytes)
        self._lock = threading.Lock()
        self.held_bytes = 0

    @property
    def budget_bytes(self) -> int:
        """The memory in bytes that all requests together may use."""
        return self._budget.total_bytes

    def part(self) -> Share:
        """Make a share for memory that may outlive the request: releasing this share does not release the part."""
        return Share(self._budget, self._whole)

    def take(self, size_bytes: int, part: float = 1.0) -> None:
        """Take bytes; call it before you allocate them.

        Fails if all requests would then use more than `part` (0 to 1) of the budget; a lone request may use all.
        Raises BodyTooLarge if this request alone exceeds the budget, QueueFull if other requests use the memory now.
        """
        if not self._whole.take(size_bytes):
            raise BodyTooLarge(
                f"This request needs more memory than the {self._budget.total_bytes} bytes that all requests of a "
                "worker may use (OCRSVC_REQUEST_MEMORY_BYTES).",
                "Send fewer or smaller images at once, or ask the operator to raise the limit.",
            )
        is_alone = self._budget.held_bytes <= self._whole.held_bytes - size_bytes
        if not self._budget.take(size_bytes, self._budget.total_bytes * (1.0 if is_alone else part)):
            self._whole.give_back(size_bytes)
            raise QueueFull(
                "Requests in flight use all the memory reserved for requests (OCRSVC_REQUEST_MEMORY_BYTES).",
                "Send the request again after the time given in Retry-After.",
            )
        with self._lock:
            self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Return bytes, at most those that this share holds; a released share holds none."""
        with self._lock:
            size_bytes = min(size_bytes, self.held_bytes)
            self.held_bytes -= size_bytes
        self._whole.give_back(size_bytes)
        self._budget.give_back(size_bytes)

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Hold bytes inside the block. Raises the errors of `take`."""
        self.take(size_bytes)
        try:
            yield
        finally:
            self.give_back(size_bytes)

    def split(self, size_bytes: int) -> Share:
        """Move some of the held bytes into an independent share."""
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
        """Return all bytes; a `with` block does so at its end. A second call does nothing."""
        self.give_back(sys.maxsize)


def unlimited() -> Share:
    """A share without a limit, for work that belongs to no request."""
    return Share(Budget(sys.maxsize))


class Callers:
    """Counts the running requests of each caller, and limits them to `limit` per caller (0: no limit); thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, name: str) -> None:
        """Count a request of this caller, until `leave` is called. Raises TooManyAtOnce."""
        with self._lock:
            if self._limit and self._in_flight[name] >= self._limit:
                raise TooManyAtOnce(
                    f"This caller has {self._limit} requests in flight here, the maximum (OCRSVC_CALLER_REQUESTS).",
                    "Wait for an answer before the next request.",
                )
            self._in_flight[name] += 1

    def leave(self, name: str) -> None:
        """Stop counting a request of this caller."""
        with self._lock:
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]

    def __len__(self) -> int:
        return len(self._in_flight)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """The limits that all requests of one process share, over HTTP and gRPC; `guard` records the running requests."""

    memory: Budget
    callers: Callers
    guard: RequestGuard | None = None


def network_of(address: str) -> str:
    """The /64 network of an IPv6 address, because a customer has at least a /64; returns other addresses unchanged."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except AddressValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((parsed, _IPV6_NETWORK_BITS), strict=False))
