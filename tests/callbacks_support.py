"""Jobs whose ends are to be told, and a receiver that keeps what it was sent."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from ocrsvc.jobs.callback import Callback, first_delivery
from ocrsvc.jobs.deliveries import Deliveries
from ocrsvc.jobs.job import CALLBACK, Job
from ocrsvc.jobs.store import JobStore

WAIT_S = 30.0
SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, so").decode()


def done_job(jobs: JobStore, host: str = "told.example", caller: str = "") -> Job:
    """A job of one page that is read, and not told yet."""
    about = {"name": "a.pdf", "numbers": [1], "count": 1, "formats": []}
    told = first_delivery(Callback(f"https://{host}/x", SECRET))
    job = jobs.add(b"a document", about, caller, more={CALLBACK: told})
    job.add_page({"number": 1, "error": "no"})
    job.finish("success")
    return job


def deliver(deliveries: Deliveries) -> None:
    """All that is due is told, or was tried."""
    deliveries.begin()
    assert deliveries.wait(WAIT_S)


def delivered(status: int = 204) -> tuple[list[tuple[bytes, Mapping[str, str]]], Any]:
    """What was sent so far, and a function that sends it."""
    sent: list[tuple[bytes, Mapping[str, str]]] = []

    def post(_url: str, body: bytes, headers: Mapping[str, str], _check: object) -> int:
        sent.append((body, headers))
        return status

    return sent, post


def verified(body: bytes, headers: Mapping[str, str]) -> bool:
    """As docs/jobs.md shows it."""
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{wanted}")
