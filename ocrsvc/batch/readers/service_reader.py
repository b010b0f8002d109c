"""Reads pages by services of this project, over which they are balanced."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from ocrsvc.batch.page_queue import GroupAdmission
from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of, result_of
from ocrsvc.batch.request import BatchRequest
from ocrsvc.client.balancer import Rules
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
from ocrsvc.imaging.codecs.decode import no_bytes

PAGE_LIMIT_S: Final = 600.0
"""A page that takes longer has failed."""
# Files that are on their way to services take so much memory at most, unless one alone is larger.
_MOST_HELD_BYTES: Final = 1 << 28
# How long services may be out of reach when the run begins.
_UNREACHABLE_S: Final = 10.0
_BLANK_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 1.0
# Services may have died over it by chance.
_ROUNDS: Final = 2
# No page is to blame for these, and waiting changes nothing.
_STOPPING: Final = (KeyMissing, KeyRefused, ScopeMissing, QuotaExceeded, RunChanged)
# Nothing came, or too late, or only refusals; what else comes is about the page.
_NO_ANSWER: Final = (Unreachable, Refused, DeadlineExceeded)
# A page without text, of 32x32 pixels: what reads it reads the others.
_BLANK: Final = b"P5\n32 32\n255\n" + b"\xff" * 1024
# What stands before services answers so when it reaches none.
_OF_PROXIES: Final = (502, 503, 504)


class Answered(NamedTuple):
    """What a service answered, its address, and engine, model and version that have read."""

    data: Data
    url: str
    identity: Mapping[str, str]


class ServiceReader:
    """Services that all read with the same engine and model; see PageReader."""

    is_elsewhere = True

    def __init__(
        self,
        services: Client,
        options: Options,
        load: Load,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._load = services, load
        # A page that takes too long is no reason to lose those that are sent with it.
        self._query = query_of(options) | {"partial": "true"}
        self._patience_s, self._clock = patience_s, clock
        self._admission = GroupAdmission(_MOST_HELD_BYTES, services.capacity)
        self._closing = threading.Event()
        self._identity: Mapping[str, str] = {}
        self._answered_s = clock()

    def start(self) -> Mapping[str, str]:
        """One of the services reads a blank page."""
        self._identity = self._read_blank().identity
        return self._identity

    @property
    def at_once(self) -> int:
        return self._services.capacity()

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """The file is sent once for all pages of the group."""
        began_s = self._clock()
        with self._admission.entered(group.file.size):
            answer = self._answer(group)
        seconds = (self._clock() - began_s) / len(group.pages)
        for number in group.pages:
            page = answer if isinstance(answer, OcrsvcError) else page_of(answer.data, number)
            if isinstance(answer, OcrsvcError) or isinstance(page, OcrsvcError):
                yield failure_of(group, number, page, seconds)  # type: ignore[arg-type]
            else:
                yield result_of(group, number, page, seconds, answer.url)

    def close(self) -> None:
        self._closing.set()
        self._services.close()

    def _answer(self, group: PageGroup) -> Answered | OcrsvcError:
        """A service's answer, or why no page was read. Raises the errors that stop the run."""
        try:
            body = self._load(group.file)
        except OcrsvcError as error:
            return error
        if not body:
            # A request without a body says nothing of the file, and its error must be the same from all readers.
            return no_bytes()
        unanswered = 0
        while True:
            try:
                return self._ask(body, self._query | pages_option(group), PAGE_LIMIT_S)
            except _STOPPING:
                raise
            except OcrsvcError as error:
                unanswered += self._is_left_unanswered(error)
                if not isinstance(error, _NO_ANSWER) or unanswered == _ROUNDS:
                    self._answered_s = self._clock()
                    return error
                waited_s = self._clock() - self._answered_s
                if waited_s >= self._patience_s or self._closing.wait(_PAUSE_S):
                    what = f"No service has answered for {waited_s:.0f} seconds: {error.detail}"
                    remedy = "Give the same command again when one does: what was read is kept."
                    raise ServicesGone(what, remedy) from error

    def _is_left_unanswered(self, error: OcrsvcError) -> bool:
        """Whether services had the file and gave no answer, and then a blank page is read: that is the file's fault."""
        never_had_it = any(isinstance(each, NotConnected | Refused) for each in (error, error.__cause__))
        if never_had_it or not isinstance(error, _NO_ANSWER):
            return False
        try:
            self._read_blank()
        except OcrsvcError:
            return False
        return True

    def _read_blank(self) -> Answered:
        """Any service's reading of a blank page, of which a region need not be part. Raises as `_ask`."""
        query = {name: value for name, value in self._query.items() if name != "region"}
        return self._ask(_BLANK, query, _BLANK_LIMIT_S)

    def _ask(self, body: bytes, query: Mapping[str, str], limit_s: float) -> Answered:
        """Raises as `Client.ask`, and RunChanged if another engine or model has read than at first."""
        answered = self._services.ask(Request("POST", PATH, query, body), parse_answer, limit_s)
        self._answered_s = self._clock()
        if self._identity and answered.identity != self._identity:
            other, own = (" ".join(each.values()) for each in (answered.identity, self._identity))
            raise RunChanged(
                f"{answered.url} reads with {other}, and this run was begun with {own}.",
                "Name services with the same engine and model.",
            )
        return answered


def open_services(request: BatchRequest, load: Load) -> ServiceReader:
    """The reader, which has asked nothing yet. Raises as `open_reader`."""
    access = request.services
    client = Client(
        request.on.split(","),
        api_key=access.api_key,
        ca=access.ca,
        certificate=access.certificate,
        priority="batch",
        rules=Rules(at_once=access.at_once, patience_s=_UNREACHABLE_S),
    )
    return ServiceReader(client, request.options, load, access.patience_s)


def pages_option(group: PageGroup) -> dict[str, str]:
    """The option that names the pages of a group; none for the only page of a file."""
    if group.file.total == 1:
        return {}
    first, last = group.pages[0], group.pages[-1]
    is_whole = len(group.pages) == last - first + 1
    return {"pages": f"{first}-{last}" if is_whole else ",".join(map(str, group.pages))}


def parse_answer(response: Response) -> Answered:
    """The answer that a response holds. Raises Unreachable and OcrsvcError."""
    if response.status in _OF_PROXIES and b'"code"' not in response.body:
        raise Unreachable(f"{response.url} answers with the status {response.status}.", "Check what is behind it.")
    data = response.data()
    engine = data.get("engine")
    if not isinstance(data.get("pages"), list) or not isinstance(engine, dict):
        raise ServerError(f"The answer of {response.url} is not one of this service.", "Check the address.")
    identity = {"engine": str(engine.get("name")), **{name: str(engine.get(name)) for name in ("model", "version")}}
    return Answered(data, response.url, identity)


# Of the output's 32 bits.
_Whole = Annotated[int, Field(ge=0, lt=1 << 31)]
_Corner = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Line(BaseModel, strict=True):
    text: str
    confidence: Annotated[float, Field(ge=0, le=1)]
    box: Annotated[list[_Corner], Field(min_length=4, max_length=4)]
    words: list[Any] | None = None
    source: str = ""


class _Page(BaseModel, strict=True):
    # What else came would end the run where its output is written.
    text: str
    width: _Whole
    height: _Whole
    angle: _Whole
    lines: list[_Line]
    regions: list[Any] = []
    tables: list[Any] = []
    barcodes: list[Any] = []
    masked: list[Any] = []


def page_of(data: Data, number: int) -> Mapping[str, Any] | OcrsvcError:
    """A page as the service gives it, or its error."""
    page: Any = next((each for each in data["pages"] if isinstance(each, dict) and each.get("page") == number), None)
    if page is None:
        return ServerError(f"The answer has no page {number}.", "Check that the service is of this version.")
    if "error" in page:
        problem = page["error"] if isinstance(page["error"], dict) else {}
        status = problem.get("status")
        return error_of(status if isinstance(status, int) else 500, problem, None)
    try:
        _Page.model_validate(page)
    except ValidationError:
        return ServerError(f"What the answer says of page {number} is no page.", "Check the address of the service.")
    return page  # type: ignore[no-any-return]
