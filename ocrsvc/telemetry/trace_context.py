"""W3C Trace Context: reads the headers traceparent and tracestate of a request, and writes those of its answer.

A malformed header counts as not sent (https://www.w3.org/TR/trace-context/). Both cost linear time and bounded memory.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

# Ids are no secrets. Python seeds it anew in each process; asking the system takes 12 us here, for five ids a request.
from random import getrandbits
from typing import Final

PARENT_HEADER: Final = "traceparent"
STATE_HEADER: Final = "tracestate"

SAMPLED: Final = 1
"""The flag of a trace that its caller records."""

LONGEST_STATE: Final = 512
"""Characters of tracestate that are passed on, as many as the specification asks for; more members are left out."""

_LONGEST_READ: Final = 4096
# Of a UUID.
_VERSION_7: Final = 7 << 76
_VARIANT: Final = 2 << 62
_MOST_MEMBERS: Final = 32
_LONGEST_PARENT: Final = 256
# Version, trace id, parent id and flags; a later version may append fields.
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER: Final = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_SANE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that a request belongs to, in hexadecimal digits, and the header tracestate as it is passed on.

    `span_id` is the request's own span, or the caller's where no span is made here; `parent_id` is the caller's.
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
        """The trace's id if it is recorded; else empty."""
        return self.trace_id if self.is_sampled else ""

    def headers(self) -> dict[str, str]:
        """What an answer carries of it."""
        parent = {PARENT_HEADER: f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"}
        return parent | ({STATE_HEADER: self.state} if self.state else {})


def read_trace_context(parent: str, state: str = "") -> TraceContext | None:
    """The caller's trace, by its headers; None without traceparent, or where it is malformed."""
    found = _PARENT.fullmatch(parent.strip(" \t")) if 0 < len(parent) <= _LONGEST_PARENT else None
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None) or not (trace_id.strip("0") and span_id.strip("0")):
        return None
    # Of a later version only this flag is known.
    known = int(flags, 16) & (0x03 if version == "00" else SAMPLED)
    return TraceContext(trace_id, span_id, flags=known, state=_passed_state(state))


def _passed_state(sent: str) -> str:
    """What is passed on of a tracestate: nothing of one that is malformed, and of a long one its first members."""
    if not sent or len(sent) > _LONGEST_READ:
        return ""
    members = [member for part in sent.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > _MOST_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    while members and len(passed := ",".join(members)) > LONGEST_STATE:
        members.pop()
    return passed if members else ""


def new_trace_id() -> str:
    """For a trace that begins here."""
    return f"{getrandbits(128):032x}"


def new_span_id() -> str:
    """For a span that is made here."""
    return f"{getrandbits(64):016x}"


def request_id_of(sent: str) -> str:
    """The header X-Request-Id if it is at most 128 visible ASCII characters, else a new id."""
    return sent if _SANE_ID.fullmatch(sent) else _new_request_id()


def _new_request_id() -> str:
    """A UUID of version 7 (RFC 9562), as TurboOCR's clients expect it: later ones sort after earlier ones."""
    milliseconds = time.time_ns() // 1_000_000
    number = milliseconds << 80 | _VERSION_7 | getrandbits(12) << 64 | _VARIANT | getrandbits(62)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
