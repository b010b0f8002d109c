"""Which pages of a job are being read, and how often each was begun by processes that did not come back.

Beside the pages so are counted the opening of the document, and the making of each file of its result.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import orjson

from ocrsvc.jobs.files import put
from ocrsvc.jobs.job import BEGUN, Job

OPENING: Final = 0
"""In place of the number of a page: the document is being opened. Below it are the files that are made of it."""

MOST_TRIES: Final = 3
"""How often a page may be begun that is never finished: by then it is what ends the processes that read it."""


class BegunPages:
    """Those of one job, on the disk; for who has claimed it.

    Several pages are read at once, and with them innocent ones are begun: who finds one that was begun before reads
    that one alone.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._times: dict[int, int] = {}
        # After a loss of power it may be empty; then nobody knows.
        with suppress(FileNotFoundError, ValueError):
            self._times = {int(number): times for number, times in job.get(BEGUN).items()}

    def times(self, number: int) -> int:
        """How often the page was begun and never finished."""
        return self._times.get(number, 0)

    def begin(self, number: int) -> int:
        """Note that a page is begun; how often it was before. Raises OSError."""
        before = self.times(number)
        self._times[number] = before + 1
        self._write()
        return before

    def end(self, number: int) -> None:
        """The page is written; that is noted with the next one that begins."""
        self._times.pop(number, None)

    def settle(self, number: int) -> None:
        """What is no page came back; that is noted at once. Raises OSError."""
        self.end(number)
        self._write()

    def forget(self, *numbers: int) -> None:
        """These were given up in good order, to be begun again: the last time does not count. Raises OSError."""
        for number in numbers:
            self._times[number] = self.times(number) - 1
        self._write()

    def _write(self) -> None:
        self._times = {number: times for number, times in self._times.items() if times > 0}
        data = orjson.dumps({str(number): times for number, times in self._times.items()})
        # Not for a loss of power, which is no page's fault.
        put(self._job.folder / BEGUN, data, is_durable=False)
