"""Load that climbs in steps, to find the number of users that the service can serve.

    locust -f locustfiles/staircase.py --host http://127.0.0.1:8000 --headless -u 40 -t 60s

-u is the number of users at the top (default 40), -t the time of the whole climb (default 60 s). Exit code 1 if an
answer is wrong.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

from exchanges import native_raw
from locust import LoadTestShape, constant, task
from pages import drawn, notices
from users import Reader, fail_without_answers

STEPS = 5
TOP_USERS = 40
CLIMB_S = 60.0
EXCHANGES = [native_raw(page) for page in (*notices(), *map(drawn, range(10)))]

fail_without_answers([EXCHANGES[0].name])


class ClimbingReader(Reader):
    """A user that sends pages of 640 x 300 pixels in turn."""

    wait_time = constant(0)
    turns = itertools.cycle(EXCHANGES)

    @task
    def read(self) -> None:
        """Send the next page."""
        self.send(next(self.turns))


class Staircase(LoadTestShape):
    """Five steps of equal length and height."""

    use_common_options: ClassVar[bool] = True

    def tick(self) -> tuple[int, float] | None:
        """Number of users now, and users started per second; None at the end."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        top = (options.num_users if options else None) or TOP_USERS
        climb_s = (options.run_time if options else None) or CLIMB_S
        run_s: float = self.get_run_time()  # type: ignore[no-untyped-call]  # locust has no annotation
        step = int(run_s / climb_s * STEPS) + 1
        return (math.ceil(top * step / STEPS), top) if step <= STEPS else None
