"""Telephone numbers: Chinese mobile and landline, international, North American and British; none has a check digit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# Behind a dash it is part of a code or a serial number, but for a name in Chinese before that.
_BEFORE: Final = r"(?:(?<=[Tt][Ee][Ll])|(?<=[\u4e00-\u9fff][_\-])|(?<=[\u4e00-\u9fff]--)|(?<![0-9A-Za-z._\-]))"
_AFTER: Final = r"(?![0-9A-Za-z]|[.\-][0-9])"

# Of the numbering plan of the Ministry of Industry and Information Technology.
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
    for shape in (
        _CHINESE_MOBILE,
        _SPREAD_MOBILE,
        _CHINESE_LANDLINE,
        _CHINESE_SERVICE,
        _NORTH_AMERICAN,
        _BRITISH,
    )
)

_INTERNATIONAL: Final = re.compile(
    r"(?<![0-9A-Za-z+])\(?\+[ ]?"
    r"(?P<number>[1-9][0-9]{0,2}\)?[ \-.]?(?:\([0-9]{1,5}\)[ \-]?)?[0-9](?:[ \-.]{0,2}[0-9]){5,13})(?![0-9A-Za-z])"
)
# Digits in all, where that is known: what follows after a space is another number.
_MOST_DIGITS: Final = (("86", 13), ("44", 12), ("1", 11))
# ITU-T E.164: of one and two digits; the others of three begin with what is left.
_COUNTRIES: Final = re.compile(
    "1|7|2(?:0|7|1[1-3678]|[23][0-9]|4[0-9]|5[0-8]|6[0-9]|9[0178])|3(?:[0-4]|6|9|5[0-9]|7[0-8]|8[0-9])"
    "|4(?:[013-9]|2[013])|5(?:[1-8]|0[0-9]|9[0-9])|6(?:[0-6]|7[02-9]|8[0-35-9]|9[0-2])"
    "|8(?:[1246]|5[02356]|80|86)|9(?:[0-58]|6[0-8]|7[0-7]|9[2-8])"
)
_NOT_DIGITS: Final = str.maketrans("", "", " -.()")

_NAMED: Final = re.compile(
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
    """Where such numbers stand: in a national shape, with a country's code, or after a word for telephone.

    Args:
        text: In half width.
    """
    for pattern in _NATIONAL:
        for match in pattern.finditer(text):
            yield match.span()
    for match in _INTERNATIONAL.finditer(text):
        number = _without_next(match["number"])
        if is_international(number.translate(_NOT_DIGITS)):
            yield match.start(), match.start("number") + len(number)
    for match in _NAMED.finditer(text):
        if not _DATE.match(match["number"]):
            yield match.span("number")


def _without_next(number: str) -> str:
    """A number without the one that follows it after a space."""
    most = next((most for code, most in _MOST_DIGITS if number.startswith(code)), len(number))
    places = [place for place, sign in enumerate(number) if sign.isdecimal()]
    if len(places) <= most or places[most] == places[most - 1] + 1:
        return number
    return number[: places[most - 1] + 1]


def is_international(digits: str) -> bool:
    """Whether digits are those of an international number: the code of a country, and 8 to 15 in all (ITU-T E.164)."""
    return 8 <= len(digits) <= 15 and _COUNTRIES.match(digits) is not None
