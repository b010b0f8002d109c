"""Asks an OpenAI-compatible server to read an image, and receives its text as a stream."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import httpx
import orjson
import pybase64

from ocrsvc.client.address import Address, services_of
from ocrsvc.client.balancer import Rules
from ocrsvc.client.request import Request
from ocrsvc.client.response import error_of
from ocrsvc.client.services import Services
from ocrsvc.engines.remote.prompts import Prompt
from ocrsvc.engines.remote.repetition import RepetitionDetector
from ocrsvc.errors import ServerError, Unreachable

REPEATED: Final = "repeated"  # the finish reason if this client stopped reading because the text repeats

_MAX_EVENT_BYTES: Final = 1 << 20
_MAX_STREAM_BYTES: Final = 1 << 26
_HEADERS: Final = {"Content-Type": "application/json", "Accept": "text/event-stream"}


def request_of(prompt: Prompt, png: memoryview, model: str, max_tokens: int) -> Request:
    """The request to read an image."""
    url = "data:image/png;base64," + pybase64.b64encode(png).decode("ascii")
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt.text}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content[::-1] if prompt.text_first else content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        **prompt.members,
    }
    return Request("POST", "/chat/completions", body=orjson.dumps(body), headers=_HEADERS)


def open_servers(urls: Sequence[str], key: str, at_once: int) -> Services:
    """The servers; an address without a path gets /v1. Raises BadOption.

    A page never waits for a server that cannot be reached, because the local engine can read it.
    """
    with_paths = [url.rstrip("/") + ("" if services_of(url)[0].path else "/v1") for url in urls]
    return Services(with_paths, api_key=key, rules=Rules(patience_s=0, at_once=at_once))


async def complete(servers: Services, request: Request, timeout_s: float) -> tuple[str, str]:
    """Send a request; return the text and its finish reason, which is "stop" if the text is complete.

    Closes the connection as soon as the end of the text repeats. Raises OcrsvcError.
    """
    return await servers.exchange(request, _receive, timeout_s)


async def _receive(answer: httpx.Response, address: Address) -> tuple[str, str]:
    if answer.status_code != httpx.codes.OK:
        # Omit the response's body, which may quote the key.
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
                return "".join(pieces), REPEATED
            finish_reason = reason or finish_reason
    if finish_reason:
        return "".join(pieces), finish_reason
    raise Unreachable(f"The stream of {address.url} ended too early.", "Check its log.")


def _parse(event: bytes, address: Address) -> tuple[str, str]:
    """The text and the finish reason of an event, each perhaps empty. Raises ServerError, also for an error event."""
    try:
        # The last event may contain `usage` but no choice.
        choice = (orjson.loads(event)["choices"] or [{"delta": {}}])[0]
        return "" + (choice["delta"].get("content") or ""), "" + (choice.get("finish_reason") or "")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"{address.url} sent an event that is no part of a text.", "Check its log.") from error


async def _events(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the data of a stream's events. Raises ServerError if an event or the stream is too large."""
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
