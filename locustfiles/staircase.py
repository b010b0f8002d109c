"""How many users at once can the service bear? Their number climbs in steps.

    locust -f locustfiles/staircase.py --host http://127.0.0.1:8000 --headless -u 40 -t 60s

-u is the number at the top (40 if left out), -t the time of the whole climb (60 s if left out). Exit code 1 when an
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
    """Sends pages of 640 x 300 pixels in turn."""

    wait_time = constant(0)
    turns = itertools.cycle(EXCHANGES)

    @task
    def read(self) -> None:
        """The next page."""
        self.send(next(self.turns))


class Staircase(LoadTestShape):
    """Five steps of equal length and height."""

    use_common_options: ClassVar[bool] = True

    def tick(self) -> tuple[int, float] | None:
        """Users now, and how many start in a second; None at the end."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        top = (options.num_users if options else None) or TOP_USERS
        climb_s = (options.run_time if options else None) or CLIMB_S
        run_s: float = self.get_run_time()  # type: ignore[no-untyped-call]  # locust's own lack
        step = int(run_s / climb_s * STEPS) + 1
        return (math.ceil(top * step / STEPS), top) if step <= STEPS else None
