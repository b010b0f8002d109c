"""Removes results logs whose pages are all in the output: the disk holds that, and what is not finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import RESULTS
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.store.contract import Store

_EVERY_S: Final = 30.0


class ResultsRemoval:
    """For the thread that refreshes the ledger.

    Args:
        store, ledger: Of the run.
        owner: Who removes.
        clock: Unix time.
    """

    def __init__(self, store: Store, ledger: Ledger, owner: Owner, clock: Callable[[], float]) -> None:
        self._store, self._ledger, self._owner, self._clock = store, ledger, owner, clock
        self._removed = clock()

    def remove_sometimes(self) -> None:
        """Remove what can be, if that was not done lately. Raises OSError and DamagedLedger."""
        if self._clock() - self._removed >= _EVERY_S:
            self.remove()

    def remove(self) -> None:
        """Remove the logs that nobody appends to, and whose parts are all in the output without failures.

        Results of parts with failures are kept: what is tried again is written together with them. Raises OSError and
        DamagedLedger.
        """
        self._removed = self._clock()
        self._ledger.note_ended(self._owner)
        needed = self._ledger.needed_results()
        for name in self._store.log_names(RESULTS):
            if name not in needed and self._ledger.is_closed(name):
                self._store.delete_log(name)
