"""Masks sensitive text in pages after the result cache, and logs recognized text if the settings ask for it."""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from ocrsvc.errors import BadOption, BodyTooLarge
from ocrsvc.masking.mask_page import mask_page
from ocrsvc.masking.rules import Rules, make_rules, masked_text
from ocrsvc.pipeline.decode_job import ReadRequest
from ocrsvc.results import Line, MaskKind, Page, ReadOptions
from ocrsvc.settings.settings import Settings

LOGGER: Final = logging.getLogger("ocrsvc.reader")
MAX_LOGGED_CHARACTERS: Final = 2000  # characters of a page's text that are logged at most
# Longest text that is masked outside of a page: one of this length takes 0.3 to 6 s of a core.
_MAX_TEXT_CHARACTERS: Final = 1 << 20


class AnswerMasking:
    """Masks pages by the request's mask and the patterns in the settings; thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._all = make_rules(patterns=settings.mask_patterns)
        self._logs_text = settings.log_text == "masked"

    def check(self, mask: Collection[MaskKind]) -> None:
        """Raise BadOption if the mask is "own" but the settings define no patterns."""
        if "own" in mask and not self._all.own:
            raise BadOption(
                "The mask 'own' was requested, but this service has no patterns of its own.",
                "Leave out 'own', or ask the operator to set OCRSVC_MASK_PATTERNS.",
            )

    def masked(self, page: Page, request: ReadRequest) -> Page:
        """The page with the requested kinds of text masked; the same page if the request asks for no masking."""
        if not request.mask:
            return page
        masked = mask_page(page, Rules(frozenset(request.mask), self._all.own))
        return replace(masked, lines=tuple(_without_extras(line, request.client_options) for line in masked.lines))

    def masked_text(self, text: str, mask: Collection[MaskKind]) -> str:
        """A text that is no page, with these kinds of text masked. Raises as `check`, and BodyTooLarge."""
        self.check(mask)
        if mask and len(text) > _MAX_TEXT_CHARACTERS:
            raise BodyTooLarge(
                f"The text has {len(text)} characters; at most {_MAX_TEXT_CHARACTERS} are masked.", "Send it in parts."
            )
        return masked_text(text, Rules(frozenset(mask), self._all.own)) if mask else text

    def log_text(self, page: Page) -> None:
        """If the settings ask for it, log the page's text with everything masked that any rule matches."""
        if self._logs_text:
            LOGGER.info("read: %r", masked_text(page.text, self._all)[:MAX_LOGGED_CHARACTERS])


def _without_extras(line: Line, options: ReadOptions) -> Line:
    """Remove the words and characters that only masking needed and the client did not request."""
    if line.words is None or options.characters:
        return line
    words = tuple(replace(word, characters=()) for word in line.words) if options.wants_words else None
    return replace(line, words=words)
