"""Reads pages by services of this project, over which they are balanced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ocrsvc.batch.pages import PageGroup, PageResult, failure_of, result_of
from ocrsvc.client.client import Client
from ocrsvc.client.request import PATH, Options, Request, query_of
from ocrsvc.client.response import Data, Response, error_of
from ocrsvc.errors import (
    DeadlineExceeded,
    KeyMissing,
    KeyRefused,
    NotConnected,
    OcrsvcError,
    QuotaExceeded,
    Refused,
    RunChanged,
    ScopeMissing,
    ServerError,
    ServicesGone,
    Unreachable,
)
from ocrsvc.imaging.decode import no_bytes

PAGE_LIMIT_S: Final = 600.0
"""A page that takes longer has failed."""

MOST_HELD_BYTES: Final = 1 << 28
"""Files that are on their way to services take so much memory at most, unless one alone is larger."""

_BLANK_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 1.0
# Services may have died over it by chance.
_ROUNDS: Final = 2
# No page is to blame for these, and waiting changes nothing.
_STOPPING: Final = (KeyMissing, KeyRefused, ScopeMissing, QuotaExceeded)
# A page without text, of 32x32 pixels: what reads it reads the others.
_BLANK: Final = b"P5\n32 32\n255\n" + b"\xff" * 1024
# What stands before services answers so when it reaches none.
_OF_PROXIES: Final = (502, 503, 504)
# Of the output's 32 bits.
_MOST: Final = (1 << 31) - 1
_CORNERS, _AXES = 4, 2
# How many may be under way can change without any of them ending, as where names are looked up anew.
_ASK_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why no page of a group was read."""

    error: OcrsvcError


@dataclass(frozen=True, slots=True)
class Answered:
    """What a service answered, and its address."""

    data: Data
    url: str


class ServiceReader:
    """Services that all read with the same engine and model."""

    def __init__(
        self,
        services: Client,
        options: Options,
        load: Callable[[PageGroup], bytes],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._load = services, load
        # A page that takes too long is no reason to lose those that are sent with it.
        self._query = query_of(options) | {"partial": "true"}
        self._patience_s, self._clock = patience_s, clock
        self._admission = GroupAdmission(MOST_HELD_BYTES, services.capacity)
        self._closing = threading.Event()
        self._identity: Mapping[str, str] = {}
        self._answered_s = clock()

    def start(self) -> Mapping[str, str]:
        """As PageReader.start: one of the services reads a blank page."""
        self._identity = identity_of(self._read_blank())
        return self._identity

    @property
    def at_once(self) -> int:
        """As PageReader.at_once: as many as the services have shown that they take."""
        return self._services.capacity()

    @property
    def is_elsewhere(self) -> bool:
        """As PageReader.is_elsewhere."""
        return True

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """As PageReader.read: the file is sent once for all pages of the group."""
        began_s = self._clock()
        with self._admission.entered(group.file.size):
            answer = self._answer(group)
        seconds = (self._clock() - began_s) / len(group.pages)
        for number in group.pages:
            page = answer.error if isinstance(answer, _Failed) else page_of(answer.data, number)
            if isinstance(page, OcrsvcError):
                yield failure_of(group, number, page, seconds)
            else:
                assert isinstance(answer, Answered)
                yield result_of(group, number, page, seconds, answer.url)

    def close(self) -> None:
        """As PageReader.close."""
        self._closing.set()
        self._services.close()

    def _answer(self, group: PageGroup) -> Answered | _Failed:
        """A service's answer, or why there is none. Raises ServicesGone, RunChanged and OcrsvcError."""
        try:
            body = self._load(group)
        except OcrsvcError as error:
            return _Failed(error)
        if not body:
            # A request without a body says nothing of the file, and what is said of it must be the same from all.
            return _Failed(no_bytes())
        unanswered = 0
        while True:
            try:
                answered = self._ask(body, self._query | pages_option(group), PAGE_LIMIT_S)
            except _STOPPING:
                raise
            except OcrsvcError as error:
                unanswered += self._is_left_unanswered(error)
                if not _is_no_answer(error) or unanswered == _ROUNDS:
                    self._answered_s = self._clock()
                    return _Failed(error)
                self._wait(error)
            else:
                self._check_same(answered)
                return answered

    def _is_left_unanswered(self, error: OcrsvcError) -> bool:
        """Whether services had the file and gave no answer, and then a blank page is read: that is the file's fault."""
        if not _is_no_answer(error) or _is_elsewhere(error) or _is_elsewhere(error.__cause__):
            return False
        try:
            self._read_blank()
        except OcrsvcError:
            return False
        return True

    def _wait(self, error: OcrsvcError) -> None:
        """Wait a little; raises ServicesGone once there is no patience left."""
        waited_s = self._clock() - self._answered_s
        if waited_s >= self._patience_s or self._closing.wait(_PAUSE_S):
            raise ServicesGone(
                f"No service has answered for {waited_s:.0f} seconds: {error.detail}",
                "Give the same command again when one does: what was read is kept.",
            ) from error

    def _check_same(self, answered: Answered) -> None:
        """Raises RunChanged where another engine or model has read than at the beginning."""
        if (identity := identity_of(answered)) != self._identity:
            raise RunChanged(
                f"{answered.url} reads with {' '.join(identity.values())}, and this run was begun with "
                f"{' '.join(self._identity.values())}.",
                "Name services with the same engine and model.",
            )

    def _read_blank(self) -> Answered:
        """Any service's reading of a blank page. Raises as `Client.ask`."""
        # A part of the page need not be on this one.
        query = {name: value for name, value in self._query.items() if name != "region"}
        return self._ask(_BLANK, query, _BLANK_LIMIT_S)

    def _ask(self, body: bytes, query: Mapping[str, str], limit_s: float) -> Answered:
        """Raises as `Client.ask`."""
        answered = self._services.ask(Request("POST", PATH, query, body), parse_answer, limit_s)
        self._answered_s = self._clock()
        return answered


def _is_no_answer(error: OcrsvcError) -> bool:
    """Whether nothing came, or too late, or only refusals; what else comes is about the page."""
    return isinstance(error, Unreachable | Refused | DeadlineExceeded)


def _is_elsewhere(error: BaseException | None) -> bool:
    """Whether what failed has nothing to do with what was sent."""
    return isinstance(error, NotConnected | Refused)


def pages_option(group: PageGroup) -> dict[str, str]:
    """The option that names the pages of a group; none for the only page of a file."""
    if group.file.total == 1:
        return {}
    first, last = group.pages[0], group.pages[-1]
    is_whole = len(group.pages) == last - first + 1
    return {"pages": f"{first}-{last}" if is_whole else ",".join(map(str, group.pages))}


class GroupAdmission:
    """So many groups, and so many bytes, may be under way at once; a file that is larger than that is alone.

    For any thread.
    """

    def __init__(self, most_bytes: int, most_at_once: Callable[[], int]) -> None:
        self._most_bytes, self._most_at_once = most_bytes, most_at_once
        self._bytes = self._groups = 0
        self._left = threading.Condition()

    @contextmanager
    def entered(self, size_bytes: int) -> Iterator[None]:
        """Wait until there is room for a group with a file of this size, and keep it for the block."""
        with self._left:
            while not self._has_room(size_bytes):
                self._left.wait(_ASK_AGAIN_S)
            self._bytes += size_bytes
            self._groups += 1
        try:
            yield
        finally:
            with self._left:
                self._bytes -= size_bytes
                self._groups -= 1
                self._left.notify_all()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._groups:
            return True
        return self._groups < self._most_at_once() and self._bytes + size_bytes <= self._most_bytes


def parse_answer(response: Response) -> Answered:
    """The answer that a response holds. Raises Unreachable and OcrsvcError."""
    data = _object_of(response.body)
    if response.status in _OF_PROXIES and "code" not in data:
        raise Unreachable(f"{response.url} answers with the status {response.status}.", "Check what is behind it.")
    if response.status != 200:
        raise error_of(response.status, data, response.retry_after)
    if not isinstance(data.get("pages"), list) or not isinstance(data.get("engine"), dict):
        raise ServerError(f"The answer of {response.url} is not one of this service.", "Check the address.")
    return Answered(data, response.url)


def identity_of(answered: Answered) -> Mapping[str, str]:
    """Engine, model and version that have read."""
    engine = answered.data["engine"]
    return {"engine": str(engine.get("name")), **{name: str(engine.get(name)) for name in ("model", "version")}}


def page_of(data: Data, number: int) -> Mapping[str, Any] | OcrsvcError:
    """A page as the service gives it, or its error."""
    page = next((each for each in data["pages"] if isinstance(each, dict) and each.get("page") == number), None)
    if page is None:
        return ServerError(f"The answer has no page {number}.", "Check that the service is of this version.")
    if "error" in page:
        return _error_of(page["error"])
    if not _is_page(page):
        return ServerError(f"What the answer says of page {number} is no page.", "Check the address of the service.")
    found: Mapping[str, Any] = page
    return found


def _error_of(said: object) -> OcrsvcError:
    data = said if isinstance(said, dict) else {}
    status = data.get("status", 500)
    return error_of(status if isinstance(status, int) else 500, data, None)


def _is_page(page: Data) -> bool:
    """Whether it has what every page has: what else came would end the run where its output is written."""
    lines = page.get("lines")
    return (
        isinstance(page.get("text"), str)
        and all(type(page.get(name)) is int and 0 <= page[name] <= _MOST for name in ("width", "height", "angle"))
        and isinstance(lines, list)
        and all(map(_is_line, lines))
        and all(isinstance(page.get(name, []), list) for name in ("regions", "tables", "barcodes", "masked"))
    )


def _is_line(line: object) -> bool:
    if not isinstance(line, dict):
        return False
    confidence, box = line.get("confidence"), line.get("box")
    return (
        isinstance(line.get("text"), str)
        and isinstance(confidence, float | int)
        and 0 <= confidence <= 1
        and isinstance(box, list)
        and len(box) == _CORNERS
        and all(isinstance(corner, list) and len(corner) == _AXES for corner in box)
        and all(isinstance(place, float | int) for corner in box for place in corner)
        and isinstance(line.get("words") or [], list)
        and isinstance(line.get("source", ""), str)
    )


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}
