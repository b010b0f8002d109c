"""What one worker reserves and counts of all keys, and what workers that died have left to be counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from ocrsvc.access.leases import Lease
from ocrsvc.access.page_counts import CountBlock, PageCounts
from ocrsvc.access.records import Hold
from ocrsvc.access.store import KeyStore
from ocrsvc.errors import KeysUnavailable

LOGGER: Final = logging.getLogger("ocrsvc.access")


class Accounts:
    """The leases of one worker, by key. Any thread may call, but for what says otherwise.

    Args:
        store: The keys, and what is used of them.
        counts: Of all workers of the service.
        slot: This worker's.
        monotonic: Monotonic seconds.
    """

    def __init__(self, store: KeyStore, counts: PageCounts, slot: int, monotonic: Callable[[], float]) -> None:
        self._store, self._counts, self._slot, self._monotonic = store, counts, slot, monotonic
        self._block = counts.block(slot)
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        # Those with something to settle.
        self._touched: set[str] = set()
        self.worker = self._block.worker
        self.in_blocks = False
        self._is_claimed = False

    def begin(self) -> bool:
        """Upkeep thread, first: count what the worker that had this slot before has left. Raises KeysUnavailable.

        Returns:
            False while another worker does that; ask again.
        """
        if not self._block.claim():
            return False
        self._is_claimed = True
        _settle_block(self._store, self._block)
        self._store.begin_worker(self.worker)
        return True

    def lease(self, name: str) -> Lease:
        """That of a key."""
        lease = self._leases.get(name)
        if lease is None:
            with self._lock:
                made = Lease(self._store, self._block, self.worker, name, self._monotonic)
                lease = self._leases.setdefault(name, made)
        return lease

    def touch(self, name: str) -> None:
        """This key has something to settle at the next turn."""
        self._touched.add(name)

    def settle(self) -> None:
        """Upkeep thread, four times a second: tell the store what was counted. Raises KeysUnavailable."""
        for name in list(self._touched):
            # Before it is settled: what is counted meanwhile is settled at the next turn.
            self._touched.discard(name)
            try:
                self.lease(name).settle()
            except BaseException:
                self._touched.add(name)
                raise
        self._block.tidy()

    def settle_abandoned(self) -> None:
        """Upkeep thread: the same for workers that died, and whose slots nobody has. Raises KeysUnavailable."""
        settle_abandoned(self._store, self._counts, besides=self._slot)

    def end(self) -> None:
        """When no request is under way any more: settle what is left, and let others have the slot."""
        if not self._is_claimed:
            return
        try:
            self.settle()
        except KeysUnavailable as error:
            LOGGER.warning("What this worker has counted is left to others: %s", error)
        self._block.give_up()


def settle_abandoned(store: KeyStore, counts: PageCounts, besides: int = -1) -> None:
    """Tell the store what is left in the blocks that no process holds. Raises KeysUnavailable."""
    for slot in counts.unsettled_slots():
        block = counts.block(slot)
        if slot != besides and block.claim():
            try:
                _settle_block(store, block)
            finally:
                block.give_up()


def _settle_block(store: KeyStore, block: CountBlock) -> None:
    for one in block.unsettled():
        store.settle(one.name, block.worker, Hold(), one.number, one.pages, one.period)
        block.note(one)
    block.tidy()
