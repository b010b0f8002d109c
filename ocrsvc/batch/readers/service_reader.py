"""Reads pages by services over HTTP: at batch priority, a second time elsewhere when one is slow, and with patience."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from ocrsvc.batch.page_record import failure_of, result_of
from ocrsvc.batch.readers.group_admission import GroupAdmission
from ocrsvc.batch.readers.service_answer import Answered, identity_of, page_of, parse_answer
from ocrsvc.batch.tasks import PageGroup, PageResult
from ocrsvc.client.balancing.changes import Left
from ocrsvc.client.request import PATH, Options, headers_of, query_of
from ocrsvc.client.several_services import SeveralServices
from ocrsvc.client.transport.connection import Request
from ocrsvc.client.transport.runners import run
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


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why no page of a group was read."""

    error: OcrsvcError


class ServiceReader:
    """Services that all read with the same engine and model.

    Args:
        services: Which; closed with the reader.
        options: How pages are read.
        load: Gives the bytes of a group's file; raises OcrsvcError.
        patience_s: How long it waits for any service to answer anything before the run stops.
        clock: Seconds, from any beginning.
    """

    def __init__(
        self,
        services: SeveralServices,
        options: Options,
        load: Callable[[PageGroup], bytes],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._load = services, load
        self._query = query_of(options)
        self._patience_s, self._clock = patience_s, clock
        self._admission = GroupAdmission(MOST_HELD_BYTES, services.capacity)
        self._closing = Left()
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
        """A service's answer, or why there is none.

        Raises:
            ServicesGone: None of them has answered anything for too long.
            RunChanged: One reads with another engine or model.
            OcrsvcError: The key is refused, or has used up its pages.
        """
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
                answered = self._ask(body, self._query | pages_option(group), PAGE_LIMIT_S, len(group.pages))
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
        """Any service's reading of a blank page. Raises as `SeveralServices.ask`."""
        # A part of the page need not be on this one.
        query = {name: value for name, value in self._query.items() if name != "region"}
        return self._ask(_BLANK, query, _BLANK_LIMIT_S, 1)

    def _ask(self, body: bytes, query: Mapping[str, str], limit_s: float, parts: int) -> Answered:
        """Raises as `SeveralServices.ask`."""
        target = f"{PATH}?{urlencode(query)}"

        def request(left_s: float) -> Request:
            return Request("POST", target, self._services.headers | headers_of(left_s), body)

        answered = run(self._services.ask(request, parse_answer, limit_s, parts), self._closing)
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
