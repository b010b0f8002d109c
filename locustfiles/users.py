"""The locust user that sends exchanges and checks their answers.

A wrong answer fails the run: locust ends with exit code 1. A refusal (503 with Retry-After) is not a failure: it is
counted under a separate name, and the user waits as long as the answer asks. A run without any right answer ends with
exit code 1 too. OCRSVC_API_KEY, if set, is the users' key; LOAD_QUERY is added to every URL, such as `model=NAME:LABEL`
or `lang=ru`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, cast

import gevent
from exchanges import Answer, Exchange, refusal_s
from locust import FastHttpUser, events
from locust.env import Environment
from locust.exception import StopUser

REFUSED = " (refused)"
KEY = os.environ.get("OCRSVC_API_KEY", "").strip()
QUERY = os.environ.get("LOAD_QUERY", "").strip()
_READY_TRIES = 60
_PAUSE_S = 1.0


class Reader(FastHttpUser):
    """A user that sends exchanges over one kept-alive connection and checks the answers."""

    abstract = True
    engine = ""

    def on_start(self) -> None:
        """Ask for the engine, on which the right answer depends; wait until one is ready."""
        if KEY:
            self.client.auth_header = f"Bearer {KEY}"
        for _ in range(_READY_TRIES):
            with self.client.get("/version", catch_response=True) as response:
                engine = _engine_of(response.content) if response.status_code == 200 else None
                if engine:
                    self.engine = engine
                    return
                response.success()
            gevent.sleep(_PAUSE_S)
        self.environment.events.request.fire(
            request_type="GET",
            name="/version",
            response_time=0,
            response_length=0,
            exception=RuntimeError("no engine became ready"),
        )
        raise StopUser

    def send(self, exchange: Exchange) -> None:
        """Send a request; returns after its answer and, if refused, after the time in Retry-After."""
        headers = {"Content-Type": exchange.content_type}
        with self.client.post(
            address_of(exchange.path),
            data=cast(Any, exchange.body),
            headers=headers,
            name=exchange.name,
            catch_response=True,
        ) as response:
            answer = _answer_of(response)
            pause_s = refusal_s(answer)
            if pause_s is not None:
                response.request_meta["name"] += REFUSED
                response.success()
            elif complaint := exchange.complaint(answer, self.engine):
                response.failure(complaint)
            else:
                response.success()
        if pause_s is not None:
            gevent.sleep(pause_s)


def address_of(path: str) -> str:
    """The path with LOAD_QUERY added."""
    return f"{path}{'&' if '?' in path else '?'}{QUERY}" if QUERY else path


def _engine_of(body: bytes) -> str | None:
    engine = json.loads(body)["engine"]
    return str(engine["name"]) if engine else None


def _answer_of(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in (response.headers or {}).items()}
    return Answer(response.status_code or 0, headers, response.content or b"")


def answered_right(environment: Environment, names: Sequence[str]) -> int:
    """Number of right answers to exchanges of these names."""
    entries = environment.stats.entries
    return sum(
        entries[name, "POST"].num_requests - entries[name, "POST"].num_failures
        for name in names
        if (name, "POST") in entries
    )


def fail_without_answers(names: Sequence[str]) -> None:
    """At the end of the run, exit with code 1 unless an exchange of these names had a right answer."""

    def judge(environment: Environment, **_: Any) -> None:
        if not answered_right(environment, names):
            print("No page was read: the run is invalid.")
            environment.process_exit_code = 1

    events.quitting.add_listener(judge)  # type: ignore[no-untyped-call]  # locust has no annotation
