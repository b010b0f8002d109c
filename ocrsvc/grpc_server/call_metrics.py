"""Counts every gRPC call, beside the requests over HTTP, and writes it to the access log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ocrsvc.errors import OcrsvcError, Refused
from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.telemetry.access_log import AccessLog, Event
from ocrsvc.telemetry.metrics_store import FAILURES, IN_FLIGHT, REFUSED, REQUEST_SECONDS, REQUESTS, WorkerMetrics

_BEGUN: Final = ((IN_FLIGHT.of(), 1),)
_OVER: Final = (IN_FLIGHT.of(), -1)


@dataclass(slots=True)
class Account:
    """What is known of one call while it is under way.

    Attributes:
        door: Under which name it is counted.
        path: As asked.
        caller: Address of the peer.
        id: The client's own, if it sent one.
        began_s: On `time.monotonic`.
        timed: Whether its seconds say anything; those of a stream say how long the client kept it.
        bytes_in, bytes_out: Of its messages.
        code, error: How it ends: by default nobody waits for the answer any more.
    """

    door: str
    path: str
    caller: str
    id: str
    began_s: float
    timed: bool
    bytes_in: int = 0
    bytes_out: int = 0
    code: Code = Code.CANCELLED
    error: BaseException | None = None


class Counting:
    """Counts calls; for the loop's thread.

    Args:
        tally: Where they are counted.
        access_log: Where each is told; None is nowhere.
    """

    def __init__(self, tally: WorkerMetrics, access_log: AccessLog | None = None) -> None:
        self._tally = tally
        self._access_log = access_log

    def begin(self) -> None:
        """One call more is under way."""
        self._tally.record(_BEGUN)

    def end(self, account: Account) -> None:
        """A call is over."""
        seconds, why = time.monotonic() - account.began_s, _why(account)
        times = ((REQUEST_SECONDS.of(account.door), seconds),) if account.timed else ()
        self._tally.record((_OVER, (REQUESTS.of(account.door, account.code.name, why), 1)), times)
        if account.error is not None:
            self._tally.count(FAILURES, why)
        if isinstance(account.error, Refused):
            self._tally.count(REFUSED, why)
        if self._access_log is not None:
            self._access_log.put(_event(account, why, seconds))


def _why(account: Account) -> str:
    """The code, as over HTTP; of what only gRPC knows, that of its status."""
    if isinstance(account.error, OcrsvcError):
        return account.error.code
    if account.error is not None and not isinstance(account.error, CallFailed):
        return OcrsvcError.code
    return "ok" if account.code is Code.OK else f"grpc_{account.code.name.lower()}"


def _event(account: Account, why: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=account.id,
        client=account.caller,
        method="POST",
        path=account.path,
        door=account.door,
        status=int(account.code),
        code=why,
        bytes_in=account.bytes_in,
        bytes_out=account.bytes_out,
        seconds=seconds,
    )
