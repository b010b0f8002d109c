"""The schema of JSON logs: one event a line, requests and everything else alike; docs/log.schema.json describes it.

A line has at most LINE_BYTES, so that a pipe takes it whole and lines of several processes never mix.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import orjson

LINE_BYTES: Final = 4096
"""PIPE_BUF of Linux, with the newline."""

REQUEST: Final = "request"
"""The event of an answered request."""

DROPPED: Final = "dropped"
"""The event of lines that the log could not keep up with."""

_MESSAGE: Final = "message"
# Shortened first, and from its beginning: the error itself comes last.
_STACK: Final = "stack"
_LONG: Final = (_STACK, _MESSAGE, "path")
_LEAST: Final = 40
# Our own messages begin with what happened, in capitals: READY, WANTS, DRAINING, RECYCLED, STUCK, HELD, CHILD … LOST.
_NAMED: Final = re.compile(r"(?:CHILD \S+ )?([A-Z]{4,20})\b(?!-)")


def json_line(fields: dict[str, Any]) -> bytes:
    """The line, with its newline; long texts are shortened until it fits."""
    line = _dump(fields)
    for name in _LONG:
        if len(line) <= LINE_BYTES:
            break
        if text := fields.get(name):
            fields = fields | {name: _shortened(text, len(line) - LINE_BYTES, at_end=name != _STACK)}
            line = _dump(fields)
    return line


def event_name(message: str) -> str:
    """What happened, by the first word of our own messages; "message" of all others."""
    found = _NAMED.match(message)
    return found[1].lower() if found else _MESSAGE


def moment(at_s: float) -> str:
    """Unix time as ISO 8601, in UTC and to the millisecond."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _shortened(text: str, excess_bytes: int, *, at_end: bool) -> str:
    """Less of a text, by so many bytes of JSON at least, as far as there is enough; "…" stands for the rest."""
    keep = len(text)
    while keep > _LEAST and len(orjson.dumps(text)) - len(orjson.dumps(_cut(text, keep, at_end=at_end))) < excess_bytes:
        keep = max(_LEAST, keep - max(_LEAST, keep // 8))
    return _cut(text, keep, at_end=at_end)


def _cut(text: str, keep: int, *, at_end: bool) -> str:
    if len(text) <= keep:
        return text
    return f"{text[:keep]}…" if at_end else f"…{text[-keep:]}"


def _dump(fields: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # Half a surrogate pair, as of bytes that are no UTF-8, is no text for it.
        plain = {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in fields.items()
        }
        return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)
