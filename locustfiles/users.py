"""How a locust user sends an exchange, and what it does with the answer.

An answer that is wrong fails the run: locust then ends with exit code 1. A refusal (503 with Retry-After) is no
failure: it is counted under a name of its own, and the user waits as long as it was asked to. A run without a single
right answer has shown nothing, and ends with exit code 1 too. OCRSVC_API_KEY, where it is set, is the users' key;
LOAD_QUERY goes with every address, such as `model=NAME:LABEL` or `lang=ru`.
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
    """A client that sends exchanges and judges the answers, over one kept-alive connection."""

    abstract = True
    engine = ""

    def on_start(self) -> None:
        """Ask which engine answers, because the right answer depends on it; wait while there is none yet."""
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
        """One request; returns when it is answered and, if it was refused, when it may come again."""
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
    """The path with LOAD_QUERY."""
    return f"{path}{'&' if '?' in path else '?'}{QUERY}" if QUERY else path


def _engine_of(body: bytes) -> str | None:
    engine = json.loads(body)["engine"]
    return str(engine["name"]) if engine else None


def _answer_of(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in (response.headers or {}).items()}
    return Answer(response.status_code or 0, headers, response.content or b"")


def answered_right(environment: Environment, names: Sequence[str]) -> int:
    """How many exchanges of these names were answered rightly."""
    entries = environment.stats.entries
    return sum(
        entries[name, "POST"].num_requests - entries[name, "POST"].num_failures
        for name in names
        if (name, "POST") in entries
    )


def fail_without_answers(names: Sequence[str]) -> None:
    """At the end of the run, exit with code 1 unless at least one exchange of these names was answered rightly."""

    def judge(environment: Environment, **_: Any) -> None:
        if not answered_right(environment, names):
            print("No page was read: this run has shown nothing.")
            environment.process_exit_code = 1

    events.quitting.add_listener(judge)  # type: ignore[no-untyped-call]  # locust's own lack
