"""The archives that a process has open, so that its members are loaded without opening it for each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ocrsvc.batch.sources.archive import Archive
from ocrsvc.batch.sources.archive_kinds import open_archive

MOST_OPEN: Final = 8
"""Archives that stay open while nobody reads them."""

_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Open:
    archive: Archive
    users: int = 0


class OpenArchives:
    """Archives by kind, address and version; for any thread. Those that were used longest ago are closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, _Open] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def using(self, kind: str, address: str, version: str) -> Iterator[Archive]:
        """An archive that stays open meanwhile. Raises what `open_archive` raises."""
        key = (kind, address, version)
        with self._lock:
            if key not in self._open:
                self._open[key] = _Open(open_archive(kind, address))
            self._open.move_to_end(key)
            entry = self._open[key]
            entry.users += 1
        try:
            yield entry.archive
        finally:
            with self._lock:
                entry.users -= 1
                self._close_idle(MOST_OPEN)

    def close(self) -> None:
        """Close all that nobody reads."""
        with self._lock:
            self._close_idle(0)

    def _close_idle(self, most: int) -> None:
        idle = [key for key, entry in self._open.items() if not entry.users]
        for key in idle[: max(0, len(self._open) - most)]:
            self._open.pop(key).archive.close()


ARCHIVES: Final = OpenArchives()
"""Those of this process."""
