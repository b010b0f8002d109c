"""Callbacks at the end of jobs: checks, signatures, fair order, and retries.

Messages are delivered at least once, or given up. Pending ones are in the database, so that any worker continues them,
also after a restart. If a job expires before its message was delivered, a message about the expiry replaces it. Headers
and signature follow standard-webhooks.com.
"""

import base64
import hashlib
import hmac
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr

from ocrsvc.connections.fetching import post
from ocrsvc.connections.policy import parse_url, policy_of_callbacks
from ocrsvc.errors import BadOption, ClientGone, OcrsvcError, UrlRefused
from ocrsvc.jobs.job import SECRET, STATES, Job, Record, job_status
from ocrsvc.jobs.job_database import LOGGER, JobDatabase
from ocrsvc.jobs.storage_threads import StorageThreads
from ocrsvc.results import ignore
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.loggable import loggable_error

_FIRST_PAUSE_S: Final = 5.0
_MAX_PAUSE_S: Final = 3600.0
# Largest random addition to a pause, as a fraction, so that messages that failed together are spread.
_JITTER: Final = 0.2
# At most _MAX_EXPIRED messages about expired jobs wait to be sent, and each at most _EXPIRED_S.
_MAX_EXPIRED: Final = 1000
_EXPIRED_S: Final = 86_400.0
# State in messages about jobs that were removed, but not by their owner.
_EXPIRED: Final = "expired"
_THREADS: Final = 8
_MAX_OF_CALLER: Final = 2
_BASE64_PREFIX: Final = "whsec_"
_MIN_SECRET_CHARS: Final = 16

# Callers take turns; each has at most `max_of_caller` messages in flight, and at most one to each host. Times after
# `far_s` are from before the system clock was set back, and count as past.
_NEXT: Final = """
WITH sending AS (SELECT caller, host FROM callback WHERE sending_until_s > :now_s AND sending_until_s < :far_s),
     turns AS (SELECT caller, max(turn) AS last_turn FROM callback GROUP BY caller)
SELECT job_id, callback.key, url, secret, tries, expired FROM callback
JOIN turns ON turns.caller = callback.caller LEFT JOIN job ON job.id = job_id
WHERE state = 'waiting' AND (expired IS NOT NULL OR is_done) AND NOT (due_at_s > :now_s AND due_at_s < :far_s)
  AND (SELECT count(*) FROM sending WHERE caller = callback.caller) < :max_of_caller
  AND (callback.caller, host) NOT IN (SELECT caller, host FROM sending)
ORDER BY last_turn, due_at_s, callback.rowid LIMIT 1"""

# Beyond a limit, deletes messages about expired jobs: the oldest ones of the callers with most such messages, so that a
# caller whose host is dead displaces only its own.
_DROP_MOST: Final = """
DELETE FROM callback WHERE job_id IN (SELECT job_id FROM (
  SELECT job_id, row_number() OVER (PARTITION BY caller ORDER BY expired_at_s DESC, rowid DESC) AS place
  FROM callback WHERE expired IS NOT NULL)
ORDER BY place DESC LIMIT (SELECT max(0, count(*) - ?) FROM callback WHERE expired IS NOT NULL))"""


def check_callback(url: str, secret: str, settings: Settings, key: str | None) -> None:
    """Raises BadOption if callbacks are off or the callback has no secret, UrlRefused if its host is not allowed."""
    policy = policy_of_callbacks(settings)
    if not policy.is_on:
        remedy = "Ask the operator to add your host to OCRSVC_CALLBACK_HOSTS, or poll the job."
        raise BadOption("This service sends no callbacks.", remedy)
    if not policy.is_allowed(parse_url(url)):
        raise UrlRefused("Callback host not allowed.", "Ask the operator to add it to OCRSVC_CALLBACK_HOSTS.")
    if not secret and (settings.callback_secret is None or key is None):
        raise BadOption(f"A callback needs a secret: send callback_secret ({_MIN_SECRET_CHARS} characters or more).")
    try:
        _signing_key(secret)
    except ValueError as error:
        raise BadOption("The secret of the callback is not base64 after whsec_.") from error
    if 0 < len(secret) < _MIN_SECRET_CHARS:
        raise BadOption(f"The secret of the callback has fewer than {_MIN_SECRET_CHARS} characters.")


def secret_of_key(service_secret: SecretStr | None, identity: str | None) -> str:
    """Callback secret for jobs that set none: from the service's secret and the API key; "" if either is missing."""
    if service_secret is None or identity is None:
        return ""
    service_key = _signing_key(service_secret.get_secret_value())
    derived = hmac.new(service_key, b"ocrsvc callback of key " + identity.encode(), hashlib.sha256)
    return _BASE64_PREFIX + base64.b64encode(derived.digest()).decode()


def headers_of(message_id: str, body: bytes, sent_at_s: float, secret: str) -> Mapping[str, str]:
    """The headers of a message, unsigned if the secret is empty. The id is the same in all tries."""
    timestamp = f"{int(sent_at_s)}"
    headers = {"Content-Type": "application/json", "webhook-id": message_id, "webhook-timestamp": timestamp}
    if not secret:
        return headers
    signature = hmac.new(_signing_key(secret), f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {**headers, "webhook-signature": f"v1,{base64.b64encode(signature).decode()}"}


def _signing_key(secret: str) -> bytes:
    """The decoded base64 after `whsec_`, or the text itself. Raises ValueError."""
    if secret.startswith(_BASE64_PREFIX):
        return base64.b64decode(secret.removeprefix(_BASE64_PREFIX), validate=True)
    return secret.encode()


def add_callback(connection: sqlite3.Connection, job: Job, record: Record) -> None:
    """Insert a job's callback if the job has no callback row yet; the secret is read from the job's folder."""
    sql = "INSERT OR IGNORE INTO callback (job_id, caller, key, url, secret, host) VALUES (?, ?, ?, ?, ?, ?)"
    with suppress(FileNotFoundError, ValueError):
        secret, host = (job.folder / SECRET).read_text(encoding="utf-8"), urlsplit(record.callback).hostname or ""
        connection.execute(sql, (job.id, record.caller, record.key, record.callback, secret, host))


def leave_message(connection: sqlite3.Connection, job: Job, now_s: float) -> None:
    """Replace the undelivered message of a job that expires with one that reports the expiry."""
    sql = """UPDATE callback SET expired = ?, expired_at_s = ?, due_at_s = 0, sending_until_s = 0
    WHERE job_id = ? AND state = 'waiting'"""
    # A damaged job must not prevent the removal of other jobs.
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        connection.execute(sql, (_body_of(job, _EXPIRED), now_s, job.id))
        connection.execute(_DROP_MOST, [_MAX_EXPIRED])


def _body_of(job: Job, state: str) -> bytes:
    data = {**job_status(job), "state": state}
    return orjson.dumps({"type": f"job.{state}", "timestamp": int(time.time()), "data": data})


class _Due(NamedTuple):
    """A callback that this process sends now; `expired` is its body if the job has expired, else None."""

    job_id: str
    key: str | None
    url: str
    secret: str
    tries: int
    expired: bytes | None

    def pause_s(self) -> float:
        """The pause before the next try if this one fails."""
        return min(_FIRST_PAUSE_S * 2.0**self.tries, _MAX_PAUSE_S)


@dataclass
class CallbackSender:
    """Sends due messages in `threads`; calls `note` with the outcome of each, for metrics."""

    database: JobDatabase
    settings: Settings
    note: Callable[[str], object] = ignore
    post: Callable[..., int] = post
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.threads = StorageThreads("callbacks", self.send_next, _THREADS, threading.Event())

    def send_next(self) -> bool:
        """Send the next due message; False if there is none. Raises QueueFull, OSError."""
        status = None
        if (due := self._claim()) is None:
            return False
        try:
            status = self._send(due)
        except ClientGone:
            # This process is ending: another one sends the message, and this try is not counted.
            self._change(due, tries=due.tries, due_at_s=0.0)
            return False
        except Exception as error:  # noqa: BLE001  counts as a failed try
            if not (due.expired or self._job(due).is_there()):
                # The job expired while its callback was sent: count no try, because another message will report that.
                return True
            if not isinstance(error, OcrsvcError):
                LOGGER.error("the callback of job %s cannot be sent", due.job_id, exc_info=loggable_error(error))
        if status is not None and 200 <= status < 300:
            self._end(due, "delivered", status)
            return True
        LOGGER.info("callback of job %s failed try=%s status=%s", due.job_id, due.tries + 1, status)
        if due.tries + 1 >= self.settings.callback_tries:
            self._end(due, "given up", status)
        else:
            pause_s = due.pause_s() * (1 + _JITTER * random.random())  # noqa: S311  no secret
            self._change(due, due_at_s=self.clock() + pause_s, status=status)
            self.note("callback_failed")
        return True

    def _claim(self) -> _Due | None:
        """Claim the next due message. The claim counts as a try, so that a message that kills processes is given up."""
        now_s = self.clock()
        values = {"now_s": now_s, "far_s": now_s + 2 * _MAX_PAUSE_S, "max_of_caller": _MAX_OF_CALLER}
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM callback WHERE expired_at_s < ?", [now_s - _EXPIRED_S])
            if (row := connection.execute(_NEXT, values).fetchone()) is None:
                return None
            due, until_s = _Due(*row), now_s + self.settings.callback_s + _FIRST_PAUSE_S
            sql = """UPDATE callback SET tries = tries + 1, due_at_s = ?, sending_until_s = ?,
            turn = (SELECT max(turn) FROM callback) + 1 WHERE job_id = ?"""
            connection.execute(sql, (max(until_s, now_s + due.pause_s()), until_s, due.job_id))
        return due

    def _send(self, due: _Due) -> int:
        """Send a callback; returns the response's HTTP status. Raises the errors of `post` and of reading the job."""
        message_id, body = f"msg_{due.job_id}_{_EXPIRED}", due.expired
        if body is None:
            job, message_id = self._job(due), f"msg_{due.job_id}"
            body = _body_of(job, STATES[job.progress().state])
        secret = due.secret or secret_of_key(self.settings.callback_secret, due.key)
        headers, policy = headers_of(message_id, body, self.clock(), secret), policy_of_callbacks(self.settings)
        return self.post(due.url, body, headers, policy, self.settings.callback_s, self._check)

    def _end(self, due: _Due, state: str, status: int | None) -> None:
        """Stop sending a message, and delete its secret; for a removed job delete the whole row."""
        if due.expired:
            self.database.rows("DELETE FROM callback WHERE job_id = ?", due.job_id)
        elif self._change(due, state=state, status=status, secret=""):
            (self._job(due).folder / SECRET).unlink(missing_ok=True)
        self.note(f"callback_{state.replace(' ', '_')}")

    def _change(self, due: _Due, **values: object) -> bool:
        """Release a message and update its row; False, without a change, if the job has expired since the claim."""
        names = "".join(f"{name} = ?, " for name in values)
        sql = f"""UPDATE callback SET {names} sending_until_s = 0
        WHERE job_id = ? AND (expired IS NULL) = ? RETURNING 1"""  # noqa: S608  no input
        return bool(self.database.rows(sql, *values.values(), due.job_id, due.expired is None))

    def _job(self, due: _Due) -> Job:
        return Job(self.database.folder / due.job_id, self.database)

    def _check(self) -> None:
        """Raises ClientGone when this process is ending."""
        if self.threads.stopped.is_set():
            raise ClientGone("This process is ending.")
