"""W3C Trace Context: parses the headers traceparent and tracestate, and makes them for the response.

A malformed header is ignored (https://www.w3.org/TR/trace-context/). Parsing takes linear time and bounded memory.
"""

import re
import time
from dataclasses import dataclass

# Ids may be predictable: the module `secrets` would take 12 us per request. Python reseeds `random` after a fork.
from random import getrandbits
from typing import Final

PARENT_HEADER: Final = "traceparent"
STATE_HEADER: Final = "tracestate"

SAMPLED: Final = 1
"""The trace flag "sampled"."""

MAX_STATE: Final = 512
"""Most characters of tracestate to pass on (the specification's minimum); members beyond it are dropped."""

_MAX_PARSED_STATE: Final = 4096
# The version and variant bits of a UUID of version 7.
_VERSION_7: Final = 7 << 76
_VARIANT: Final = 2 << 62
_MAX_MEMBERS: Final = 32
_MAX_PARENT: Final = 256
# Matches version, trace id, parent id and flags; a later version may append fields.
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER: Final = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_SANE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that a request belongs to: ids in hexadecimal, and the tracestate to pass on.

    `span_id` is the request's span, or with tracing off the caller's span; `parent_id` is the caller's span.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    flags: int = 0
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def sampled_id(self) -> str:
        """The trace's id if the trace is recorded, else an empty text."""
        return self.trace_id if self.is_sampled else ""

    def headers(self) -> dict[str, str]:
        """The response's headers traceparent and tracestate."""
        parent = {PARENT_HEADER: f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"}
        return parent | ({STATE_HEADER: self.state} if self.state else {})


def read_trace_context(parent: str, state: str = "") -> TraceContext | None:
    """Parse the headers that the caller sent; None if traceparent is missing or malformed."""
    match = _PARENT.fullmatch(parent.strip(" \t")) if 0 < len(parent) <= _MAX_PARENT else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None) or not (trace_id.strip("0") and span_id.strip("0")):
        return None
    # Of the flags of later header versions only "sampled" is certain to keep its meaning.
    known = int(flags, 16) & (0x03 if version == "00" else SAMPLED)
    return TraceContext(trace_id, span_id, flags=known, state=_passed_state(state))


def _passed_state(state: str) -> str:
    """The tracestate to pass on: empty if it is malformed, cut to its first members if it is long."""
    if not state or len(state) > _MAX_PARSED_STATE:
        return ""
    members = [member for part in state.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > _MAX_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    while members and len(passed := ",".join(members)) > MAX_STATE:
        members.pop()
    return passed if members else ""


def new_trace_id() -> str:
    """A random id for a trace that begins with this request."""
    return f"{getrandbits(128):032x}"


def new_span_id() -> str:
    """A random id for a new span."""
    return f"{getrandbits(64):016x}"


def request_id_of(header: str) -> str:
    """The value of X-Request-Id if it is 1 to 128 visible ASCII characters, else a new id."""
    return header if _SANE_ID.fullmatch(header) else _new_request_id()


def _new_request_id() -> str:
    """A UUID of version 7 (RFC 9562), which TurboOCR's clients expect; later ids sort after earlier ones."""
    milliseconds = time.time_ns() // 1_000_000
    number = milliseconds << 80 | _VERSION_7 | getrandbits(12) << 64 | _VARIANT | getrandbits(62)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
