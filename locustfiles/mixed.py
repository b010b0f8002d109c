"""Load of small, huge and broken pages together, in every wire format; every answer is checked.

    locust -f locustfiles/mixed.py --host http://127.0.0.1:8000 --headless -u 20 -r 20 -t 30s

A broken page must be refused with the right status; any other answer to it fails the run (exit code 1), and so does a
wrong text.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from exchanges import EVERY_WAY, broken, native_multipart, native_raw, trwebocr_urlencoded
from locust import constant, task
from pages import drawn, huge, line, notices
from users import Reader, fail_without_answers

PAGES = (*notices(), line(), *map(drawn, range(5)))
SMALL = [way(page) for way, page in itertools.product(EVERY_WAY, PAGES)]
HUGE = [
    replace(exchange, name=f"huge: {exchange.name}")
    for exchange in (native_multipart(huge()), native_raw(huge()), trwebocr_urlencoded(huge()))
]
BROKEN = broken()

fail_without_answers([exchange.name for exchange in SMALL])


class MixedReader(Reader):
    """A user that sends mostly small pages, some broken ones, and occasionally a huge one."""

    wait_time = constant(0)

    @task(16)
    def read_small(self) -> None:
        """Send a small page in any wire format."""
        self.send(random.choice(SMALL))

    @task(1)
    def read_huge(self) -> None:
        """Send a page of 7 million pixels."""
        self.send(random.choice(HUGE))

    @task(3)
    def read_broken(self) -> None:
        """Send a request that must be refused."""
        self.send(random.choice(BROKEN))
