"""Asks an OpenAI-compatible server to read an image, and receives its text as a stream."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson

from ocrsvc.client.address import Address, services_of
from ocrsvc.client.balancer import Rules
from ocrsvc.client.request import Request
from ocrsvc.client.response import error_of
from ocrsvc.client.services import Services
from ocrsvc.engines.remote.prompts import Prompt
from ocrsvc.engines.remote.repetition import RepetitionDetector
from ocrsvc.errors import ServerError, Unreachable

REPEATED: Final = "repeated"
"""The finish reason of a text that was cut off here because its end repeats."""

_MAX_EVENT_BYTES: Final = 1 << 20
_MAX_STREAM_BYTES: Final = 1 << 26
_HEADERS: Final = {"Content-Type": "application/json", "Accept": "text/event-stream"}


@dataclass(frozen=True, slots=True)
class Completion:
    """The text that a model wrote, and why it ended: "stop" if it is complete."""

    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model and how it is asked."""

    name: str
    prompt: Prompt
    max_tokens: int

    def request(self, image_url: str) -> Request:
        """The request to read an image, which is a data URL."""
        text: dict[str, Any] = {"type": "text", "text": self.prompt.text}
        image: dict[str, Any] = {"type": "image_url", "image_url": {"url": image_url}}
        body = {
            "model": self.name,
            "messages": [{"role": "user", "content": [text, image] if self.prompt.text_first else [image, text]}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            **self.prompt.members,
        }
        return Request("POST", "/chat/completions", body=orjson.dumps(body), headers=_HEADERS)


def open_servers(urls: Sequence[str], key: str, at_once: int) -> Services:
    """The servers; an address without a path gets /v1. Raises BadOption.

    A page never waits for a server that cannot be reached, because the local engine can read it.
    """
    with_paths = [url.rstrip("/") + ("" if services_of(url)[0].path else "/v1") for url in urls]
    return Services(with_paths, api_key=key, rules=Rules(patience_s=0, at_once=at_once))


async def complete(servers: Services, request: Request, timeout_s: float) -> Completion:
    """Send a request and receive its text; close the connection as soon as the text repeats. Raises OcrsvcError."""
    return await servers.exchange(request, _receive, timeout_s)


async def _receive(answer: httpx.Response, address: Address) -> Completion:
    if answer.status_code != httpx.codes.OK:
        # Without the body, which may quote the key.
        detail = {"detail": f"{address.url} answered {answer.status_code}."}
        raise error_of(answer.status_code, detail, answer.headers.get("Retry-After"))
    if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
        raise ServerError(f"{address.url} did not answer with a stream.", "Check its address and its log.")
    detector, pieces = RepetitionDetector(), list[str]()
    finish_reason = ""
    async with aclosing(_events(answer)) as events:
        async for event in events:
            text, reason = _parse(event, address)
            pieces.append(text)
            if detector.is_repeating(text):
                return Completion("".join(pieces), REPEATED)
            finish_reason = reason or finish_reason
    if finish_reason:
        return Completion("".join(pieces), finish_reason)
    raise Unreachable(f"The stream of {address.url} ended too early.", "Check its log.")


def _parse(event: bytes, address: Address) -> tuple[str, str]:
    """The text and the finish reason of an event, each perhaps empty. Raises ServerError, also for an error event."""
    try:
        choices = orjson.loads(event)["choices"]
        text = choices[0]["delta"].get("content") or "" if choices else ""
        finish_reason = choices[0].get("finish_reason") or "" if choices else ""
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"{address.url} sent an event that is no part of a text.", "Check its log.") from error
    if not isinstance(text, str) or not isinstance(finish_reason, str):
        raise ServerError(f"{address.url} sent a text that is none.", "Check its log.")
    return text, finish_reason


async def _events(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The data of server-sent events without [DONE]. Raises ServerError for an event or a stream without end.

    The stream is read to its end, so that its connection can be used again.
    """
    rest, length = b"", 0
    async for piece in answer.aiter_raw():
        length += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES or length > _MAX_STREAM_BYTES:
            raise ServerError("The stream is too large for the text of a page.", "Check the server's address.")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield data
