"""Tells the ends of jobs to their callbacks: each message at least once, until it is taken.

In each worker one thread looks for what is to be told, and a few send it, to one host one message at a time. What is to
be told lies with the job on the disk, so that any worker, also of a service that was started again, goes on with it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Final
from urllib.parse import urlsplit

import orjson

from ocrsvc.errors import OcrsvcError
from ocrsvc.jobs.callback import Delivery, headers_of
from ocrsvc.jobs.files import try_lock
from ocrsvc.jobs.host_queues import HostQueues
from ocrsvc.jobs.job import CALLBACK, Job
from ocrsvc.jobs.job_status import STATES, job_status
from ocrsvc.jobs.store import JobStore, StorageFull, storing
from ocrsvc.outgoing.policy import policy_of_callbacks
from ocrsvc.outgoing.posting import post
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.loggable import loggable_error

LOGGER: Final = logging.getLogger("ocrsvc.jobs")
Post = Callable[[str, bytes, Mapping[str, str], Callable[[], object]], int]
"""Posts a body with headers to a URL, calling the last argument meanwhile; the status. Raises OcrsvcError."""

_POLL_S: Final = 1.0
_LOG_INTERVAL_S: Final = 60.0
_LOCK: Final = "callback.lock"
_THREADS: Final = 4
# What is raised of a file that does not hold what it should, whatever stands in it.
_DAMAGED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
EXPIRED: Final = "expired"
"""The state, in messages alone, of a job that was removed by nobody who asked for it."""


class Stopping(Exception):
    """The thread is to end."""


class Deliveries:
    """The threads that tell what is to be told; `start` and `stop` them.

    Args:
        jobs: The jobs.
        post: Sends a message.
        most_tries: After how many a message is given up.
        secret: Signs messages of jobs that name no secret; "" leaves them unsigned.
        clock: The clock on the wall.
    """

    def __init__(
        self, jobs: JobStore, post: Post, most_tries: int, secret: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._jobs, self._post, self._most_tries, self._secret, self._clock = jobs, post, most_tries, secret, clock
        self._settled: set[str] = set()
        self._quiet_until_s = 0.0
        self._stopped = threading.Event()
        self._sending = HostQueues(_THREADS, self._tell_if_due, self._is_for_all)
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave what was not told to others."""
        self._stopped.set()
        until_s = time.monotonic() + timeout_s
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._sending.wait(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                self.begin()
            except Exception as error:  # noqa: BLE001  a thread that ended would leave every later callback untold
                self._report(error)

    def _is_for_all(self, error: Exception) -> bool:
        """Report what kept a message from being sent; whether it would keep all others too."""
        if isinstance(error, Stopping):
            return True
        self._report(error)
        return isinstance(error, StorageFull)

    def _report(self, error: Exception) -> None:
        """What is wrong with the disk is logged now and then, not each time."""
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            LOGGER.error("callbacks cannot be told; tried again later: %s", loggable_error(error))

    def begin(self) -> None:
        """Have told what is due now. Raises OSError where the jobs cannot be listed."""
        jobs, due = [*self._jobs.all(), *self._jobs.untold.all()], defaultdict[str, list[Job]](list)
        self._settled &= {job.id for job in jobs}
        for job in jobs:
            if job.id in self._settled:
                continue
            try:
                if (delivery := self._due_delivery(job)) is not None:
                    due[urlsplit(delivery.url).hostname or ""].append(job)
            # Others are told all the same.
            except _DAMAGED as error:
                self._leave(job, error)
            except OSError as error:
                self._report(error)
        for host, told in due.items():
            self._sending.put(host, told)

    def _leave(self, job: Job, error: Exception) -> None:
        """It cannot be understood, and is not tried again by this process."""
        self._settled.add(job.id)
        LOGGER.error("the callback of job %s cannot be understood: %s", job.id, loggable_error(error))

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was begun is told, or was tried; whether that came."""
        return self._sending.wait(timeout_s)

    def _due_delivery(self, job: Job) -> Delivery | None:
        """What is to be sent now; None for nothing."""
        try:
            delivery = Delivery(**job.get(CALLBACK))
        except FileNotFoundError:
            # It has none, and gets none; or it was moved to the untold meanwhile, and is found there the next time.
            if job.is_there():
                self._settled.add(job.id)
            return None
        is_expired = self._jobs.untold.has(job)
        if delivery.state != "waiting":
            self._settled.add(job.id)
            if is_expired:
                self._jobs.untold.remove(job)
            return None
        return delivery if (is_expired or job.is_done()) and delivery.is_due(self._clock()) else None

    def _tell_if_due(self, job: Job) -> None:
        """Raises Stopping, StorageFull, and OSError where it cannot be read or noted."""
        self._check()
        try:
            # It may have been deleted since.
            with storing(), suppress(FileNotFoundError), (job.folder / _LOCK).open("ab") as lock:
                # Another worker may have told it since.
                if try_lock(lock) and (delivery := Delivery(**job.get(CALLBACK))).is_due(self._clock()):
                    self._tell(job, delivery)
        except _DAMAGED as error:
            self._leave(job, error)

    def _tell(self, job: Job, delivery: Delivery) -> None:
        is_expired, sent_at_s, status, why = self._jobs.untold.has(job), self._clock(), 0, ""
        # Another message than that of its end, which may have been sent before.
        state, message_id = STATES[job.state()[0]], f"msg_{job.id}"
        if is_expired:
            state, message_id = EXPIRED, f"{message_id}_{EXPIRED}"
        data = {**job_status(job), "state": state}
        body = orjson.dumps({"type": f"job.{state}", "timestamp": int(sent_at_s), "data": data})
        headers = headers_of(message_id, body, sent_at_s, delivery.secret or self._secret)
        # A disk without room would have it sent without end: nothing is sent that is not noted before.
        job.put(CALLBACK, asdict(delivery.begun(sent_at_s)))
        try:
            status = self._post(delivery.url, body, headers, self._check)
            why = "" if 200 <= status < 300 else f"It answered {status}."
        except OcrsvcError as error:
            why = str(error)
        except Stopping:
            job.put(CALLBACK, asdict(delivery))
            raise
        except Exception as error:
            LOGGER.error("the callback of job %s cannot be sent", job.id, exc_info=loggable_error(error))
            why = "Something went wrong here; it is in the service's log."
        after = delivery.after(status, why, self._clock(), self._most_tries, random.random())  # noqa: S311  no secret
        if after.state != "waiting":
            after = Delivery(**{**asdict(after), "secret": ""})
        job.put(CALLBACK, asdict(after))
        if is_expired and after.state != "waiting":
            self._jobs.untold.remove(job)
        self._jobs.note("callback_failed" if after.state == "waiting" else f"callback_{after.state.replace(' ', '_')}")
        if why:
            LOGGER.info("callback of job %s failed try=%s state=%s", job.id, after.tries, after.state)

    def _check(self) -> None:
        """Raises Stopping."""
        if self._stopped.is_set():
            raise Stopping


def make_deliveries(jobs: JobStore, settings: Settings) -> Deliveries | None:
    """What tells the ends of jobs, as the settings say; None where no host is told anything."""
    policy, limit_s = policy_of_callbacks(settings), settings.callback_s
    if not policy.is_on:
        return None

    def send(url: str, body: bytes, headers: Mapping[str, str], check: Callable[[], object]) -> int:
        return post(url, body, headers, policy, limit_s, check)

    secret = settings.callback_secret
    return Deliveries(jobs, send, settings.callback_tries, secret.get_secret_value() if secret is not None else "")
