"""Load by a constant number of users with pages of one size; every answer is checked.

    locust -f locustfiles/steady.py --host http://127.0.0.1:8000 --headless -u 20 -r 20 -t 20s

Each user sends the next page as soon as the last one is answered. Exit code 1 if an answer is wrong.
"""

from __future__ import annotations

import itertools

from exchanges import native_multipart
from locust import constant, task
from pages import drawn, notices
from users import Reader, fail_without_answers

EXCHANGES = [native_multipart(page) for page in (*notices(), *map(drawn, range(10)))]

fail_without_answers([EXCHANGES[0].name])


class SteadyReader(Reader):
    """A user that sends pages of 640 x 300 pixels in turn."""

    wait_time = constant(0)
    turns = itertools.cycle(EXCHANGES)

    @task
    def read(self) -> None:
        """Send the next page."""
        self.send(next(self.turns))
