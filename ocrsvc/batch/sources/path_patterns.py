"""Patterns of paths, such as scans/**/*.png: where to look for them, and what matches."""

from __future__ import annotations

import re
from typing import Final

from ocrsvc.errors import BadOption

_MAGIC: Final = re.compile(r"[*?\[]")
_PIECE: Final = re.compile(r"\[(?P<not>[!^])?(?P<set>\]?[^]]*)\]|(?P<star>\*+)|(?P<one>\?)|(?P<text>.)", re.DOTALL)


def is_pattern(text: str) -> bool:
    """Whether a path has *, ? or [ in it."""
    return _MAGIC.search(text) is not None


def pattern_expression(pattern: str) -> re.Pattern[str]:
    """What a pattern matches: * and ? stay within a folder, ** spans folders, [abc] is one of these characters.

    Raises BadOption.
    """
    parts = []
    names = pattern.split("/")
    for number, name in enumerate(names):
        is_last = number == len(names) - 1
        if name == "**":
            parts.append(".*" if is_last else "(?:.*/)?")
        else:
            parts.append(_name_expression(name) + ("" if is_last else "/"))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise BadOption(f"The pattern {pattern!r} is wrong: {error}.", "Use *, **, ? and [abc].") from error


class PathPattern:
    """A pattern with the folder below which all that matches lies.

    Attributes:
        folder: That one; "" is the working folder.
        levels: How many folders deep matches lie at most, from that one; None is any depth.
    """

    def __init__(self, text: str) -> None:
        names = text.split("/")
        first = next(number for number, name in enumerate(names) if is_pattern(name))
        self.folder = "/".join(names[:first]) or ("/" if text.startswith("/") else "")
        self.levels = None if "**" in names else len(names) - first
        self._expression = pattern_expression(text)

    def matches(self, path: str) -> bool:
        """Whether a path below the folder is one of those."""
        return self._expression.fullmatch(path) is not None


def _name_expression(name: str) -> str:
    parts = []
    for match in _PIECE.finditer(name):
        if match["star"]:
            parts.append("[^/]*")
        elif match["one"]:
            parts.append("[^/]")
        elif match["set"]:
            parts.append(f"(?!/)[{'^' if match['not'] else ''}{_set_expression(match['set'])}]")
        else:
            parts.append(re.escape(match[0]))
    return "".join(parts)


def _set_expression(characters: str) -> str:
    return re.sub(r"([\\\[\]^&~|])", r"\\\1", characters)
