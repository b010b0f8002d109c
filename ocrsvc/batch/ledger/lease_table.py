"""Which owner has which part, by what the logs say of leases, whatever the order in which they were read."""

from __future__ import annotations

from dataclasses import dataclass

from ocrsvc.batch.lease_clock import LEASE_S
from ocrsvc.batch.ledger.owner import Owner


@dataclass(frozen=True, slots=True)
class Lease:
    """A part is the owner's from `since` until then, in Unix time."""

    owner: Owner
    since: float
    until: float


class LeaseTable:
    """The leases of all owners; for one thread.

    Leases save work, and nothing else depends on them: two owners that both have a part read its pages twice. Clocks of
    hosts may differ by LEASE_S less the time between two renewals.
    """

    def __init__(self) -> None:
        self._leases: dict[int, dict[str, Lease]] = {}

    def note(self, part: int, owner: Owner, since: float, until: float, met: float) -> None:
        """An owner says that a part is its own; until = since gives it back.

        Args:
            part, owner, since, until: As of Lease.
            met: Unix time here. A clock that is far ahead keeps a part no longer than a lease from now.
        """
        leases = self._leases.setdefault(part, {})
        leases.pop(owner.name, None)
        if until > since:
            leases[owner.name] = Lease(owner, since, min(until, met + LEASE_S))

    def forget(self, part: int) -> None:
        """A part is in the output: nobody needs it any more."""
        self._leases.pop(part, None)

    def end(self, owner: Owner | None) -> None:
        """An owner has ended in order, and has nothing any more."""
        for leases in self._leases.values():
            leases.pop(owner.name if owner else "", None)

    def holder(self, part: int, now: float, here: Owner) -> Owner | None:
        """Who has a part at this Unix time, as seen by an owner; of several the one that took it first."""
        leases = self._leases.get(part, {})
        for name in [name for name, lease in leases.items() if lease.until <= now or lease.owner.is_gone(here)]:
            del leases[name]
        first = min(leases.values(), key=lambda lease: (lease.since, lease.owner.name), default=None)
        return None if first is None else first.owner
