"""Recorded answers of the original servers (stored beside the repository), and structural comparison of JSON."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support import SHARED

FOLDER = SHARED / "wire" / "golden"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded HTTP response."""

    status: int
    content_type: str
    body: str

    @property
    def mimetype(self) -> str:
        """The content type without its parameters."""
        return self.content_type.partition(";")[0].strip()

    @property
    def json(self) -> Any:
        """The body parsed as JSON; None if it is not JSON."""
        return parse_json(self.body)


def parse_json(text: str) -> Any:
    """Parse a text as JSON; None if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_golden(name: str) -> dict[str, Recorded]:
    """The responses of one recording by title; skips the test if the recording is missing."""
    file = FOLDER / name
    if not file.is_file():
        pytest.skip(f"the recording {file} is missing: set OCRSVC_SHARED to the folder that contains wire/")
    chapters = re.split(r"^### (.+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    pairs = zip(chapters[::2], chapters[1::2], strict=True)
    return dict(_exchanges(pairs))


def _exchanges(pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, Recorded]]:
    for title, text in pairs:
        found = _of_curl(text) if text.startswith("HTTP/") else _of_script(text)
        if found:
            yield title, found


def _of_curl(text: str) -> Recorded:
    """Parse the output of curl -i: status line, headers, blank line, body."""
    head, _, body = text.removeprefix("HTTP/1.1 100 Continue\n\n").partition("\n\n")
    content_type = re.search(r"^content-type: (.+)$", head, re.MULTILINE | re.IGNORECASE)
    return Recorded(int(head.split()[1]), content_type[1] if content_type else "", body.partition("\n---")[0].strip())


def _of_script(text: str) -> Recorded | None:
    """Parse three parts: METHOD path; HTTP status and type; body."""
    lines = text.split("\n", 2)
    status = re.fullmatch(r"HTTP (\d+) (\S+)", lines[1]) if len(lines) > 2 else None
    return Recorded(int(status[1]), status[2], lines[2].strip()) if status else None


def differences(expected: object, actual: object, where: str = "$") -> list[str]:
    """Structural differences between two JSON values, one sentence each; empty if there are none.

    The first item of an expected list is the pattern for all actual items. A list with items of several types is a
    tuple: it is compared item by item. An empty list matches any list. An object with numeric keys counts as a list.
    """
    return list(_differences(expected, actual, where))


def _differences(expected: object, actual: object, where: str) -> Iterator[str]:
    if type(expected) is not type(actual):
        yield f"{where}: {type(actual).__name__} instead of {type(expected).__name__}"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        if expected and all(key.isdecimal() for key in (*expected, *actual)):
            yield from _in_lists(list(expected.values()), list(actual.values()), where)
        else:
            yield from _in_objects(expected, actual, where)
    elif isinstance(expected, list) and isinstance(actual, list) and expected:
        yield from _in_lists(expected, actual, where)


def _in_objects(expected: dict[str, object], actual: dict[str, object], where: str) -> Iterator[str]:
    if expected.keys() != actual.keys():
        yield f"{where}: keys {sorted(actual)} instead of {sorted(expected)}"
    for key in expected.keys() & actual.keys():
        yield from _differences(expected[key], actual[key], f"{where}.{key}")


def _in_lists(expected: list[object], actual: list[object], where: str) -> Iterator[str]:
    is_tuple = len({type(item) for item in expected}) > 1
    if not actual or (is_tuple and len(expected) != len(actual)):
        yield f"{where}: {len(actual)} items instead of {len(expected)}"
        return
    patterns = expected if is_tuple else expected[:1] * len(actual)
    for number, (pattern, item) in enumerate(zip(patterns, actual, strict=True)):
        yield from _differences(pattern, item, f"{where}[{number}]")
