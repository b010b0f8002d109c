"""Jobs whose ends are to be sent, and a receiver that keeps what it was sent."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

from ocrsvc.jobs.callbacks import CallbackSender
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.settings.settings import Settings

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, so").decode()


def done_job(jobs: JobStore, host: str = "told.example", caller: str = "", key: str | None = None) -> Job:
    """A job of one page that is read, and whose end is not sent yet; with a key it names no secret."""
    record = Record(caller, key, name="a.pdf", numbers=[1], count=1, callback=f"https://{host}/x")
    job = jobs.add(b"a document", record, "" if key else SECRET)
    job.append_page({"number": 1, "error": "no"})
    job.finish()
    return job


def sender_of(jobs: JobStore, post: Callable[..., int], tries: int = 3, **settings: Any) -> CallbackSender:
    """What sends the ends of these jobs, by this clock."""
    return CallbackSender(jobs.database, Settings(callback_tries=tries, **settings), post=post, clock=jobs.wall)


def send_due(sender: CallbackSender) -> None:
    """All that is due is sent, or was tried."""
    while sender.send_next():
        pass


def receiver(status: int = 204) -> tuple[list[tuple[bytes, Mapping[str, str]]], Any]:
    """What was sent so far, and a function that sends it."""
    sent: list[tuple[bytes, Mapping[str, str]]] = []

    def post(_url: str, body: bytes, headers: Mapping[str, str], *_: object) -> int:
        sent.append((body, headers))
        return status

    return sent, post


def verified(body: bytes, headers: Mapping[str, str], secret: str = SECRET) -> bool:
    """As docs/jobs.md shows it."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{wanted}")
