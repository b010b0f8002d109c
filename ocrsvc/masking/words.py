"""Masks the words and characters of a line as its text was masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ocrsvc.masking.rules import MASK
from ocrsvc.records import Character, Word


def mask_words(words: Sequence[Word], text: str, masked: str) -> tuple[Word, ...]:
    """The words of a line whose text was masked.

    Args:
        words: In the order of the text.
        text: Of the line, as it was read.
        masked: As long, with stars.

    Returns:
        The same words with the same stars; if they are not the text without its spaces, stars alone.
    """
    left = "".join(sign for sign, before in zip(masked, text, strict=True) if not before.isspace())
    if "".join(word.text for word in words) != "".join(text.split()):
        left = MASK * sum(len(word.text) for word in words)
    masked_words, at = [], 0
    for word in words:
        masked_words.append(_masked_word(word, left[at : at + len(word.text)]))
        at += len(word.text)
    return tuple(masked_words)


def _masked_word(word: Word, masked: str) -> Word:
    if word.text == masked:
        return word
    return replace(word, text=masked, characters=_masked_characters(word, masked))


def _masked_characters(word: Word, masked: str) -> tuple[Character, ...]:
    characters, at = [], 0
    fits = "".join(character.text for character in word.characters) == word.text
    for character in word.characters:
        size = len(character.text)
        characters.append(replace(character, text=masked[at : at + size] if fits else MASK * size))
        at += size
    return tuple(characters)
