"""Masks the pages of answers, after the result cache; and logs recognised text where the settings ask for it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ocrsvc.errors import BadOption
from ocrsvc.masking.mask_page import mask_page
from ocrsvc.masking.rules import Rules, make_rules, masked_text
from ocrsvc.pipeline.decode_job import ReadRequest
from ocrsvc.results import Line, Page, ReadOptions
from ocrsvc.settings.settings import Settings

LOGGER: Final = logging.getLogger("ocrsvc.reader")
LOGGED_LETTERS: Final = 2000
"""Of a page's text in the log, at most."""


class AnswerMasking:
    """Masks pages by the rules of the settings; for any thread."""

    def __init__(self, settings: Settings) -> None:
        self._all = make_rules(patterns=settings.mask_patterns)
        self._logs_text = settings.log_text == "masked"

    def check(self, request: ReadRequest) -> None:
        """Raises BadOption for a request that wants what the settings do not have."""
        if "own" in request.mask and not self._all.own:
            raise BadOption(
                "What the service's own patterns find is to be masked (own), and it has none.",
                "Leave own out; the operator sets them in OCRSVC_MASK_PATTERNS.",
            )

    def masked(self, page: Page, request: ReadRequest) -> Page:
        """The page as it is answered: the page itself where nothing is to be masked."""
        if not request.mask:
            return page
        masked = mask_page(page, Rules(frozenset(request.mask), self._all.own))
        return replace(masked, lines=tuple(_as_asked(line, request.asked) for line in masked.lines))

    def log_text(self, page: Page) -> None:
        """Log the page's text, all that any rule finds masked; nothing unless the settings ask for it."""
        if self._logs_text:
            LOGGER.info("read: %r", masked_text(page.text, self._all)[:LOGGED_LETTERS])


def _as_asked(line: Line, asked: ReadOptions) -> Line:
    """The line without the words or characters that were needed here alone."""
    if line.words is None or asked.characters:
        return line
    words = tuple(replace(word, characters=()) for word in line.words) if asked.wants_words else None
    return replace(line, words=words)
