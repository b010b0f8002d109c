"""Finds payment cards, mail addresses and phone numbers. Finders yield index ranges [begin, end) of half-width text."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from ocrsvc.masking.text_forms import DIGIT, to_digits, without_separators

# Cards are recognized by their issuer's range, their length, and the check digit of ISO 7812 (Luhn).
_MIN_CARD, _MAX_CARD = 13, 19

# Ranges of the first four digits, by allowed lengths of the card number (ISO/IEC 7812, published by the networks).
_ISSUERS: Final = {
    (13, 16, 19): "4000-4999",  # Visa
    (14, 16): "3000-3059 3095-3095 3600-3699 3800-3999",  # Diners Club
    (15,): "3400-3499 3700-3799",  # American Express
    (16,): "2221-2720 5100-5599",  # Mastercard
    # In this order: Mir, JCB, Discover, UnionPay, Discover and RuPay, UnionPay
    (16, 17, 18, 19): "2200-2204 3528-3589 6011-6011 6200-6299 6440-6599 8100-8171",
    (19,): "9558-9558",  # ICBC
    tuple(range(13, 20)): "5018-5018 5020-5020 5038-5038 5893-5893 6304-6304 6759-6763",  # Maestro
}
_LENGTHS: Final = {
    prefix: frozenset(lengths)
    for lengths, ranges in _ISSUERS.items()
    for ends in ranges.split()
    for prefix in range(int(ends[:4]), int(ends[5:]) + 1)
}
_DOUBLED: Final = str.maketrans("0123456789", "0246813579")

# Digits that touch letters are part of a serial number, except after No or Card.
_RUN: Final = re.compile(
    r"(?:(?<![0-9A-Za-z])|(?<=[Nn][Oo])|(?<=[Cc][Aa][Rr][Dd]))[0-9]+(?:[ \-\n]{1,2}[0-9]+)*(?![0-9A-Za-z])"
)
_GROUP: Final = re.compile("[0-9]+")
_MISREAD_CARD: Final = re.compile(
    rf"(?<![0-9A-Za-z])(?:{DIGIT}{{4}}[ \-]?){{3}}{DIGIT}{{4}}(?:[ \-]?{DIGIT}{{3}})?(?![0-9A-Za-z])"
)


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Find card numbers without spaces, in the groups printed on cards, or with a space after each digit.

    A number may continue in the next line. One or two letters misread for digits are accepted in a number without
    spaces or in groups of four.
    """
    for match in _RUN.finditer(text):
        if match.end() - match.start() >= _MIN_CARD:
            yield from _cards_in_run([group.span() for group in _GROUP.finditer(text, *match.span())], text)
    for match in _MISREAD_CARD.finditer(text):
        number = without_separators(match[0])
        letters = sum(not character.isdecimal() for character in number)
        if 0 < letters <= 2 and is_card(to_digits(number)):
            yield match.span()


def _cards_in_run(groups: Sequence[tuple[int, int]], text: str) -> Iterator[tuple[int, int]]:
    """Find card numbers made of successive groups of digits: the longest number that begins with each group."""
    first = 0
    while first < len(groups):
        last = _last_of_card(groups[first : first + _MAX_CARD], text)
        if last is not None:
            yield groups[first][0], groups[first + last][1]
            first += last
        first += 1


def _last_of_card(groups: Sequence[tuple[int, int]], text: str) -> int | None:
    """Index of the last group of the longest card number that begins with the first group; None if there is none."""
    begin = groups[0][0]
    if text[begin] in "01" or groups[0][1] - begin > _MAX_CARD:
        return None
    sizes = [end - start for start, end in groups]
    digits = without_separators(text[begin : groups[-1][1]])
    for last, length in reversed(list(enumerate(accumulate(sizes)))):
        if is_card(digits[:length]) and _are_printed(sizes[: last + 1]):
            return last if text.count("\n", begin, groups[last][1]) < 2 else None
    return None


def _are_printed(sizes: Sequence[int]) -> bool:
    """Whether digits are grouped as on cards: by four (spaces may be lost), 4-6-5, 4-6-4, 6-13, 6-10, or singly."""
    if all(size % 4 == 0 for size in sizes[:-1]) or all(size == 1 for size in sizes):
        return True
    return tuple(sizes) in {(4, 6, 5), (4, 6, 4), (6, 13), (6, 10)}


def is_card(number: str) -> bool:
    """Whether digits are a card number, by the issuer's range and length, and the check digit."""
    if len(number) not in _LENGTHS.get(int(number[:4]), ()):
        return False
    return sum(map(int, number[::-2] + number[-2::-2].translate(_DOUBLED))) % 10 == 0


# Mail addresses may contain single spaces, which recognizers insert around punctuation.
_LOCAL: Final = re.compile(r"[A-Za-z0-9._%+\-']{1,64}[ ]?\Z")
_LABEL: Final = r"[A-Za-z0-9][A-Za-z0-9\-]{0,62}"
_DOMAIN: Final = re.compile(rf"[ ]?(?:{_LABEL}[.]){{1,8}}[A-Za-z]{{2,24}}(?![A-Za-z0-9\-])")
# A domain whose last dot has a space beside it, or was misread as another punctuation mark.
_MISREAD_DOMAIN: Final = re.compile(
    rf"[ ]?{_LABEL}[ ]?[.,\u3002\u00b7][ ]?(?:com|cn|net|org|edu|gov)(?:[.](?:cn|hk|tw|uk))?(?![A-Za-z0-9\-])"
)


def find_mails(text: str) -> Iterator[tuple[int, int]]:
    """Find mail addresses in ASCII."""
    for at in (mark.start() for mark in re.finditer("@", text)):
        # An address has at most 64 characters before the @ and 255 after it.
        local = _LOCAL.search(text, max(0, at - 64), at)
        window = (at + 1, min(len(text), at + 1 + 255))
        domain = _DOMAIN.match(text, *window) or _MISREAD_DOMAIN.match(text, *window)
        if local and domain:
            yield local.start(), domain.end()


# Phone numbers: Chinese mobile and landline, international, North American and British; none has a check digit.
# A number after a dash is part of a serial number, unless Chinese characters (a name) precede the dash.
_BEFORE: Final = r"(?:(?<=[Tt][Ee][Ll])|(?<=[\u4e00-\u9fff][_\-])|(?<=[\u4e00-\u9fff]--)|(?<![0-9A-Za-z._\-]))"
_AFTER: Final = r"(?![0-9A-Za-z]|[.\-][0-9])"

# Area codes of the numbering plan of China's Ministry of Industry and Information Technology.
_CHINESE_AREAS: Final = (
    "10|2[0-57-9]|3(?:1[0-9]|35|49|5[0-9]|7[0-79]|9[1-8])|4(?:1[0-9]|2[179]|3[1-9]|5[1-9]|6[4789]|7[0-9]|8[23])"
    "|5(?:1[0-9]|2[37]|3[0-9]|43|46|5[0-9]|6[1-6]|7[0-9]|80|9[1-9])|6(?:3[1-5]|6[0238]|9[12])"
    "|7(?:01|1[0-9]|2[248]|3[0145789]|4[3-6]|5[0-9]|6[0236-9]|7[0-9]|9[0-9])"
    "|8(?:1[2367]|2[5-7]|3[0-9]|5[1-9]|7[0-9]|8[3678]|9[1-8])|9(?:0[1-36-9]|1[1-79]|3[0-9]|4[13]|5[1-5]|7[0-79]|9[0-9])"
)
_CHINESE_MOBILE: Final = (
    r"(?:(?:\(?\+[ ]?|00|\()?86\)?[ \-]?)?"
    r"1(?:[38][0-9]|4[5-9]|5[0-35-9]|6[2567]|7[0-8]|9[0-35-9])(?:[ \-]?[0-9]{4}[ \-]?[0-9]{4}|[ ][0-9]{3}[ ][0-9]{5})"
)
_SPREAD_MOBILE: Final = r"1[ ][3-9](?:[ ][0-9]){9}"
_CHINESE_LANDLINE: Final = (
    rf"(?:(?:\+|00)?86[ \-]?)?(?:\(0(?:{_CHINESE_AREAS})\)|0(?:{_CHINESE_AREAS}))[ \-]{{0,3}}"
    r"[2-9][0-9]{2,3}[ \-]?[0-9]{4}"
    r"(?:(?:-|[ ]?转[ ]?)[0-9]{1,6})?"
)
_CHINESE_SERVICE: Final = r"[48]00(?:-[0-9]{3}-[0-9]{4}|-[0-9]{4}-[0-9]{3}|-[0-9]{7}|[ ][0-9]{3}[ ][0-9]{4})"
_EXCHANGE: Final = r"[2-9][0-9]{2}"
_NORTH_AMERICAN: Final = (
    rf"(?:1[ \-.])?(?:\({_EXCHANGE}\)[ \-.]?|{_EXCHANGE}(?P<mark>[\-.])){_EXCHANGE}(?(mark)(?P=mark)|[ \-.])[0-9]{{4}}"
)
_BRITISH: Final = (
    r"(?:07[0-9]{3}[ \-]?(?:[0-9]{6}|[0-9]{3}[ \-][0-9]{3})|\(?02[03489]\)?[ \-]?[0-9]{4}[ \-]?[0-9]{4}"
    r"|\(?01[0-9]1\)?[ \-][0-9]{3}[ \-]?[0-9]{4}|\(?01[0-9]{3}\)?[ \-][0-9]{3}[ \-]?[0-9]{2,3}"
    r"|0[38][0-9]{2}[ \-][0-9]{3}[ \-]?[0-9]{3,4})"
)
_NATIONAL: Final = tuple(
    re.compile(f"(?=[(+0-9]){_BEFORE}{shape}{_AFTER}")
    for shape in (_CHINESE_MOBILE, _SPREAD_MOBILE, _CHINESE_LANDLINE, _CHINESE_SERVICE, _NORTH_AMERICAN, _BRITISH)
)

_INTERNATIONAL: Final = re.compile(
    r"(?<![0-9A-Za-z+])\(?\+[ ]?"
    r"(?P<number>[1-9][0-9]{0,2}\)?[ \-.]?(?:\([0-9]{1,5}\)[ \-]?)?[0-9](?:[ \-.]{0,2}[0-9]){5,13})(?![0-9A-Za-z])"
)
# Most digits of a number by country code; further digits after a space belong to another number.
_MAX_DIGITS: Final = (("86", 13), ("44", 12), ("1", 11))
# Country codes of ITU-T E.164.
_COUNTRIES: Final = re.compile(
    "1|7|2(?:0|7|1[1-3678]|[23][0-9]|4[0-9]|5[0-8]|6[0-9]|9[0178])|3(?:[0-4]|6|9|5[0-9]|7[0-8]|8[0-9])"
    "|4(?:[013-9]|2[013])|5(?:[1-8]|0[0-9]|9[0-9])|6(?:[0-6]|7[02-9]|8[0-35-9]|9[0-2])"
    "|8(?:[1246]|5[02356]|80|86)|9(?:[0-58]|6[0-8]|7[0-7]|9[2-8])"
)
_NOT_DIGITS: Final = str.maketrans("", "", " -.()")

_NAMED_PHONE: Final = re.compile(
    r"(?:电话|手机|联系方式|传真|热线|座机|\b(?:telephone|tel|phone|mobile|mob|cell|fax|call|whatsapp)\b)"
    r"(?:号码|号|no\b|number)?[^0-9+(\nA-Za-z]{0,12}"
    r"(?P<number>[+(]?[0-9](?:[ \-.()]{0,3}[0-9]){6,14})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_DAY: Final = "(?:0?[1-9]|[12][0-9]|3[01])"
_DATE: Final = re.compile(
    rf"(?:19|20)[0-9]{{2}}([ \-./]?)(?:0?[1-9]|1[0-2])\1{_DAY}|{_DAY}([ \-.]){_DAY}\2(?:19|20)[0-9]{{2}}\Z"
)


def find_phones(text: str) -> Iterator[tuple[int, int]]:
    """Find phone numbers in a national format, with a country code, or after a word such as Tel."""
    for pattern in _NATIONAL:
        for match in pattern.finditer(text):
            yield match.span()
    for match in _INTERNATIONAL.finditer(text):
        number = _without_next(match["number"])
        digits = number.translate(_NOT_DIGITS)
        # ITU-T E.164: numbers with a country code have 8 to 15 digits.
        if 8 <= len(digits) <= 15 and _COUNTRIES.match(digits):
            yield match.start(), match.start("number") + len(number)
    for match in _NAMED_PHONE.finditer(text):
        if not _DATE.match(match["number"]):
            yield match.span("number")


def _without_next(number: str) -> str:
    """Cut off a second number that follows after a space."""
    max_digits = next((count for code, count in _MAX_DIGITS if number.startswith(code)), len(number))
    places = [place for place, character in enumerate(number) if character.isdecimal()]
    if len(places) <= max_digits or places[max_digits] == places[max_digits - 1] + 1:
        return number
    return number[: places[max_digits - 1] + 1]
