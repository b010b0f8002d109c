"""Reads pages with remote services of this project, balancing the load between them."""

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
"""Time limit of a request to a service, which may be for many pages."""
# Memory limit of the files being sent to services; a larger file is sent alone.
_MAX_HELD_BYTES: Final = 1 << 28
# How long a request is retried while no service is reachable; at its start, the run fails after this time.
_UNREACHABLE_S: Final = 10.0
_BLANK_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 1.0
# A file that leaves two requests unanswered fails: it may crash services. One unanswered request proves nothing.
_ROUNDS: Final = 2
# Errors that stop the run: they are not a page's fault, and waiting does not help.
_STOPPING: Final = (KeyMissing, KeyRefused, ScopeMissing, QuotaExceeded, RunChanged)
# Errors that say nothing about the page, so the request is retried; any other error is the page's result.
_NO_ANSWER: Final = (Unreachable, Refused, DeadlineExceeded)
# A blank page of 32x32 pixels in PGM format, to test whether a service can read at all.
_BLANK: Final = b"P5\n32 32\n255\n" + b"\xff" * 1024
# Statuses with which a proxy answers if it reaches no service.
_OF_PROXIES: Final = (502, 503, 504)


class Answered(NamedTuple):
    """A service's answer, its address, and the engine, model and version that it used."""

    data: Data
    url: str
    identity: Mapping[str, str]


class ServiceReader:
    """A PageReader that sends files to services, which must all use the same engine and model."""

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
        # With `partial`, a page that takes too long does not fail the other pages of its request.
        self._query = query_of(options) | {"partial": "true"}
        self._patience_s, self._clock = patience_s, clock
        self._admission = GroupAdmission(_MAX_HELD_BYTES, services.capacity)
        self._closing = threading.Event()
        self._identity: Mapping[str, str] = {}
        self._answered_s = clock()

    def start(self) -> Mapping[str, str]:
        """Have one service read a blank image, to learn its engine and model."""
        self._identity = self._read_blank().identity
        return self._identity

    @property
    def at_once(self) -> int:
        return self._services.capacity()

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """Send the file once for all pages of the group, and yield their results."""
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
        """A service's response, or the error of all pages of the group. Raises the errors that stop the run."""
        try:
            body = self._load(group.file)
        except OcrsvcError as error:
            return error
        if not body:
            # A service reports an empty body differently, but all readers must give the same error for an empty file.
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
        """Whether the file is at fault: services received it and did not answer, but still read a blank page."""
        never_had_it = any(isinstance(each, NotConnected | Refused) for each in (error, error.__cause__))
        if never_had_it or not isinstance(error, _NO_ANSWER):
            return False
        try:
            self._read_blank()
        except OcrsvcError:
            return False
        return True

    def _read_blank(self) -> Answered:
        """Test with a small blank image whether any service can read. Raises as `_ask`.

        The request omits the option `region`, because the region may lie outside this image.
        """
        query = {name: value for name, value in self._query.items() if name != "region"}
        return self._ask(_BLANK, query, _BLANK_LIMIT_S)

    def _ask(self, body: bytes, query: Mapping[str, str], limit_s: float) -> Answered:
        """Send one request. Raises as `Client.ask`, and RunChanged if the engine or model is not that of `start`."""
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
    """Make the reader; it sends nothing before `start`. Raises as `open_reader`."""
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
    """The option that selects the pages of a group; none for a file with one page."""
    if group.file.total == 1:
        return {}
    first, last = group.pages[0], group.pages[-1]
    is_whole = len(group.pages) == last - first + 1
    return {"pages": f"{first}-{last}" if is_whole else ",".join(map(str, group.pages))}


def parse_answer(response: Response) -> Answered:
    """Parse a service's response. Raises Unreachable and OcrsvcError."""
    if response.status in _OF_PROXIES and b'"code"' not in response.body:
        raise Unreachable(f"{response.url} answers with the status {response.status}.", "Check what is behind it.")
    data = response.data()
    engine = data.get("engine")
    if not isinstance(data.get("pages"), list) or not isinstance(engine, dict):
        raise ServerError(f"The answer of {response.url} is not one of this service.", "Check the address.")
    identity = {"engine": str(engine.get("name")), **{name: str(engine.get(name)) for name in ("model", "version")}}
    return Answered(data, response.url, identity)


# A whole number that fits into the 32-bit columns of the output.
_Whole = Annotated[int, Field(ge=0, lt=1 << 31)]
_Corner = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Line(BaseModel, strict=True):
    text: str
    confidence: Annotated[float, Field(ge=0, le=1)]
    box: Annotated[list[_Corner], Field(min_length=4, max_length=4)]
    words: list[Any] | None = None
    source: str = ""


class _Page(BaseModel, strict=True):
    # Validate the services' pages on arrival: a malformed page would stop the run later, when its output is written.
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
    """One page of a service's answer, or its error."""
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
