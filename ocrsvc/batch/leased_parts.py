"""The parts of a run that one owner has leased: takes the next that is free, renews leases, notices those it lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ocrsvc.batch.lease_clock import LEASE_S, RENEW_S
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import LedgerLog
from ocrsvc.batch.ledger.owner import Owner


@dataclass(slots=True)
class _OwnLease:
    """When (Unix time) a part was leased, was renewed last, and how many of its pages are still to be read here."""

    since: float
    renewed: float
    left: int = 0


class LeasedParts:
    """For one thread.

    Args:
        ledger: Refreshed by `commit`.
        log: The owner's.
        owner: Who leases.
        parts: Those that this owner may lease, in their order.
        clock: Unix time.
    """

    def __init__(self, ledger: Ledger, log: LedgerLog, owner: Owner, parts: range, clock: Callable[[], float]) -> None:
        self._ledger, self._log, self._owner, self._clock = ledger, log, owner, clock
        self._open = list(parts)
        self._leases: dict[int, _OwnLease] = {}

    def __contains__(self, part: object) -> bool:
        return part in self._leases

    def lease_next(self) -> int | None:
        """Lease the first part that is neither finished nor another's. Raises OSError and DamagedLedger."""
        self._open = [part for part in self._open if not self._ledger.is_finished(part)]
        for part in self._open:
            if part not in self._leases and self._is_free(part) and self._lease(part):
                return part
        return None

    def commit(self) -> list[int]:
        """Make durable what the log noted, renew leases, and see what others did. Raises OSError and DamagedLedger.

        Gives the parts that are another's now, as this owner was silent for too long: they are not its own any more.
        """
        now = self._clock()
        for part, lease in self._leases.items():
            # Also where the clock was set back.
            if not 0 <= now - lease.renewed < RENEW_S:
                # What has run out begins anew, behind whoever took it since.
                lease.since = lease.since if now < lease.renewed + LEASE_S else now
                lease.renewed = now
                self._log.note_lease(part, lease.since, now + LEASE_S)
        self._log.commit()
        self._ledger.refresh()
        lost = [part for part in self._leases if not self._is_free(part)]
        for part in lost:
            self.give_back(part)
        return lost

    def add_pages(self, part: int, count: int) -> None:
        """So many pages of a leased part are to be read."""
        self._leases[part].left += count

    def note_page(self, part: int) -> bool:
        """A page was read or has failed; whether it was the last of a part that is leased here."""
        lease = self._leases.get(part)
        if lease is None or not lease.left:
            return False
        lease.left -= 1
        return not lease.left

    def drop(self, part: int) -> None:
        """A part is in the output: its lease is over by itself."""
        self._leases.pop(part, None)

    def open_again(self, part: int) -> None:
        """A part is to be leased anew, also where it seemed to be finished."""
        self.give_back(part)
        if part not in self._open:
            self._open.append(part)

    def give_back(self, part: int) -> None:
        """Let others have a part. With the next commit."""
        now = self._clock()
        self._leases.pop(part, None)
        self._log.note_lease(part, now, now)

    def is_complete(self) -> bool:
        """Whether all parts are in the output."""
        self._open = [part for part in self._open if not self._ledger.is_finished(part)]
        return not self._open

    def unfinished(self) -> list[int]:
        """The leased parts."""
        return list(self._leases)

    def _is_free(self, part: int) -> bool:
        """Whether no other owner has a part."""
        return self._ledger.holder(part, self._clock(), self._owner) in (None, self._owner)

    def _lease(self, part: int) -> bool:
        """Say that a part is this owner's, and look whether another was first."""
        now = self._clock()
        self._log.note_lease(part, now, now + LEASE_S)
        self._leases[part] = _OwnLease(now, now)
        self.commit()
        # Another may have finished it since it was looked at.
        if part in self._leases and self._ledger.is_finished(part):
            self.drop(part)
        return part in self._leases
