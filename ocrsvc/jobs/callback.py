"""The callback of a job: where its end is told, how the message is signed, and when it is sent again.

The headers and the signature are those of standard-webhooks.com. Decides only; opens no connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ocrsvc.errors import BadOption
from ocrsvc.outgoing.policy import policy_of_callbacks
from ocrsvc.settings.settings import Settings

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 3600.0
# Of a pause, added at most: many jobs that failed to be told together are not told again together.
_JITTER: Final = 0.2
_BASE64_PREFIX: Final = "whsec_"
_FEWEST_LETTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Callback:
    """Where the end of a job is told.

    Attributes:
        url: To which it is posted.
        secret: Signs the message; "" leaves that to the secret of the service.
    """

    url: str
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How far telling the end of a job has come, as it lies on the disk.

    Attributes:
        url, secret: As of Callback.
        tries: How often it was sent.
        state: "waiting", "delivered" or "given up".
        due_at_s: Before this moment of the clock on the wall it is not sent again.
        status: Of the last answer; 0 for none.
        why: It was not delivered, the last time.
    """

    url: str
    secret: str = ""
    tries: int = 0
    state: str = "waiting"
    due_at_s: float = 0.0
    status: int = 0
    why: str = ""

    def is_due(self, now_s: float) -> bool:
        """Whether it is to be sent at this moment; a clock on the wall that went back keeps nothing waiting."""
        return self.state == "waiting" and not now_s < self.due_at_s <= now_s + 2 * LONGEST_PAUSE_S

    def begun(self, now_s: float) -> Delivery:
        """What it is while it is sent, and stays where the process that sends it ends: a try, with the next one due."""
        return replace(self, tries=self.tries + 1, due_at_s=now_s + self._pause_s())

    def _pause_s(self) -> float:
        return min(FIRST_PAUSE_S * 2.0**self.tries, LONGEST_PAUSE_S)

    def after(self, status: int, why: str, now_s: float, most_tries: int, share: float) -> Delivery:
        """What it is once it was sent.

        Args:
            status: Of the answer; 0 for none.
            why: There was none, or not the right one.
            now_s: By the clock on the wall.
            most_tries: After how many it is given up.
            share: Of the jitter that is added, drawn by lot from [0, 1).
        """
        tried = replace(self, tries=self.tries + 1, status=status, why=why)
        if not why:
            return replace(tried, state="delivered")
        if tried.tries >= most_tries:
            return replace(tried, state="given up")
        return replace(tried, due_at_s=now_s + self._pause_s() * (1 + _JITTER * share))


def first_delivery(callback: Callback) -> dict[str, Any]:
    """What is kept of a callback when its job is taken in."""
    return {"url": callback.url, "secret": callback.secret}


def check_callback(callback: Callback, settings: Settings) -> None:
    """Raises BadOption where nobody is told, or nothing signs it, and UrlRefused for where this service does not go."""
    policy = policy_of_callbacks(settings)
    if not policy.is_on:
        raise BadOption(
            "This service tells no callback the end of a job.",
            "Ask the operator to name your host in OCRSVC_CALLBACK_HOSTS, or ask for the job from time to time.",
        )
    policy.check_url(callback.url)
    if callback.secret:
        check_secret(callback.secret)
    elif settings.callback_secret is None:
        raise BadOption("Nothing signs the callback.", "Send callback_secret, which both of you know.")


def check_secret(secret: str) -> None:
    """Raises BadOption for a secret that is none: too short, or not the base64 that it says it is."""
    try:
        key_of(secret)
    except ValueError as error:
        raise BadOption("The secret of the callback is not base64 after whsec_.") from error
    if len(secret) < _FEWEST_LETTERS:
        raise BadOption(f"The secret of the callback has fewer than {_FEWEST_LETTERS} characters.")


def key_of(secret: str) -> bytes:
    """The bytes that sign: after `whsec_` those that the base64 stands for, else the text itself. Raises ValueError."""
    if not secret.startswith(_BASE64_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_BASE64_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error


def headers_of(message_id: str, body: bytes, sent_at_s: float, secret: str) -> Mapping[str, str]:
    """The headers of a message.

    Args:
        message_id: The same each time that it is sent, so that who has it already knows.
        body: As it is sent.
        sent_at_s: Unix seconds.
        secret: See `key_of`; "" does not sign.
    """
    sent = f"{int(sent_at_s)}"
    headers = {"Content-Type": "application/json", "webhook-id": message_id, "webhook-timestamp": sent}
    if not secret:
        return headers
    signed = hmac.new(key_of(secret), f"{message_id}.{sent}.".encode() + body, hashlib.sha256).digest()
    return {**headers, "webhook-signature": f"v1,{base64.b64encode(signed).decode()}"}
