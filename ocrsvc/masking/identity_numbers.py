"""Finds numbers of persons, firms and accounts (kind "id"). Finders yield index ranges [begin, end) of half-width text.

Numbers with a check digit may contain spaces, dashes and letters misread for digits, and may continue in the next line;
the others are found by their format or by a word before them.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import cycle
from typing import Final

from ocrsvc.masking.text_forms import DIGIT, count_digits, to_digits, without_separators

# Chinese resident identity numbers: 18 characters with a check character (GB 11643, MOD 11-2), or 15 digits without.
# First two digits (GB/T 2260): provinces, autonomous regions and cities; 83 is for residence permits of Taiwanese.
_REGIONS: Final = (range(11, 16), range(21, 24), range(31, 38), range(41, 47), range(50, 55), range(61, 66), (71,))
_PROVINCES: Final = frozenset(str(code) for codes in (*_REGIONS, range(81, 84)) for code in codes)
_RESIDENT_WEIGHTS: Final = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
# Recognizers return these for X: small x, the multiplication sign, and Cyrillic letters.
_LAST_CHARACTERS: Final = str.maketrans(dict.fromkeys("x\u00d7\u0425\u0445", "X"))

_SEPARATED: Final = r"[ \-\n]{0,3}"
_RESIDENT_ID: Final = re.compile(
    rf"(?<![0-9])(?=([1-8IilZzSsB|](?:{_SEPARATED}{DIGIT}){{16}}{_SEPARATED}(?:{DIGIT}|[Xx\u00d7\u0425\u0445]))"
    r"(?![0-9]))"
)
_OLD_RESIDENT_ID: Final = re.compile(r"(?<![0-9A-Za-z])[1-8][0-9]{14}(?![0-9A-Za-z])")


def find_resident_ids(text: str) -> Iterator[tuple[int, int]]:
    """Find resident identity numbers; those of 18 characters may contain separators and continue in the next line."""
    for match in _RESIDENT_ID.finditer(text):
        number = without_separators(match[1])
        # A match with more than four letters is a word, not a number with misread digits.
        is_number = match[1].count("\n") < 2 and count_digits(number) >= 14
        if is_number and is_resident_id(to_digits(number[:-1] + number[-1].translate(_LAST_CHARACTERS))):
            yield match.span(1)
    for match in _OLD_RESIDENT_ID.finditer(text):
        # Numbers of 15 digits were issued until October 1999; only their region and date can be checked.
        if _is_born(match[0], "19" + match[0][6:12]):
            yield match.span()


def is_resident_id(number: str) -> bool:
    """Whether 18 characters are a valid number: region, date of birth, check character."""
    check_character = "10X98765432"[_weighed(number[:17], _RESIDENT_WEIGHTS) % 11]
    return _is_born(number, number[6:14]) and check_character == number[17]


def _is_born(number: str, birth: str) -> bool:
    """Whether a number begins with a region of GB/T 2260 (province and a part other than 00) and `birth` is a date."""
    try:
        return number[:2] in _PROVINCES and number[2:4] != "00" and date.fromisoformat(birth).year in range(1900, 2100)
    except ValueError:
        return False


# Chinese unified social credit codes: 18 characters with a check character (GB 32100).
_CODE_CHARACTERS: Final = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_CODE_WEIGHTS: Final = tuple(3**place % 31 for place in range(17))
# Weights of the organization code (GB 11714), which is part of the credit code.
_BODY_WEIGHTS: Final = (3, 7, 9, 10, 5, 8, 4, 2)
# The code excludes letters that look like digits, so such a letter is a misread digit.
_TO_CODE_DIGITS: Final = str.maketrans("OoIilZzSs|", "0011122551")

_CODE: Final = re.compile(
    r"(?<![0-9A-Za-z])(?=([1-9ANYaynIl|](?:[ \-\n]{0,2}[0-9A-Za-z|]){17})(?![0-9A-Za-z]))", re.ASCII
)


def find_credit_codes(text: str) -> Iterator[tuple[int, int]]:
    """Find unified social credit codes; they may contain separators and continue in the next line."""
    for match in _CODE.finditer(text):
        candidate = match[1]
        if candidate.count("\n") < 2 and count_digits(candidate) >= 8:
            code = without_separators(candidate).translate(_TO_CODE_DIGITS).upper()
            if is_credit_code(code):
                yield match.span(1)


def is_credit_code(code: str) -> bool:
    """Whether 18 characters are a credit code; codes of digits only must also match the organization code's check."""
    if not (code[1:8].isdecimal() and code[2:4] in _PROVINCES and set(code) <= set(_CODE_CHARACTERS)):
        return False
    total = sum(_CODE_CHARACTERS.index(letter) * weight for letter, weight in zip(code, _CODE_WEIGHTS, strict=False))
    body_check = "0123456789X"[-_weighed(code[8:16], _BODY_WEIGHTS) % 11]
    return _CODE_CHARACTERS[-total % 31] == code[17] and (not code.isdecimal() or body_check == code[16])


# International bank account numbers: a country, two check digits (ISO 7064 MOD 97-10) and an account.
# Length of IBANs by country (SWIFT's registry of IBAN formats).
_IBANS: Final = (
    "NO15 BE16 DK18 FO18 FI18 GL18 NL18 SD18 MK19 SI19 AT20 BA20 EE20 KZ20 XK20 LT20 LU20 MN20 HR21 LV21 LI21 "
    "CH21 BH22 BG22 CR22 GE22 DE22 IE22 ME22 RS22 GB22 VA22 TL23 GI23 IQ23 IL23 SO23 AE23 OM23 AD24 CZ24 MD24 "
    "PK24 RO24 SA24 SK24 ES24 SE24 TN24 VG24 LY25 PT25 ST25 IS26 TR26 BI27 DJ27 FR27 GR27 IT27 MR27 MC27 SM27 "
    "AL28 AZ28 BY28 CY28 DO28 GT28 HU28 LB28 NI28 PL28 SV28 BR29 EG29 PS29 QA29 UA29 JO30 KW30 MU30 YE30 MT31 "
    "SC31 LC32 RU33"
)
_IBAN_LENGTHS: Final = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}
# The word IBAN may touch the number, because recognizers lose spaces.
_IBAN_HEAD: Final = re.compile(r"(?:(?<![0-9A-Za-z])|(?<=[Ii][Bb][Aa][Nn]))([A-Za-z]{2})[ ]?([0-9OoQDIil|ZzSsB]{2})")
_IBAN_RESTS: Final = {
    length: re.compile(rf"(?:[ \n]?[0-9A-Za-z]){{{length - 4}}}(?![0-9A-Za-z])") for length in _IBAN_LENGTHS.values()
}


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """Find IBANs; they may contain single spaces and continue in the next line."""
    for head in _IBAN_HEAD.finditer(text):
        length = _IBAN_LENGTHS.get(head[1].upper())
        rest = _IBAN_RESTS[length].match(text, head.end()) if length else None
        if rest and rest[0].count("\n") < 2 and _is_any_iban(text[head.start() : rest.end()]):
            yield head.start(), rest.end()


def _is_any_iban(text: str) -> bool:
    """Whether a text is an IBAN, either as it is or after converting misread letters to digits."""
    number = without_separators(text).upper()
    head = number[:2] + to_digits(number[2:4])
    return any(is_iban(head + rest) for rest in dict.fromkeys((number[4:], to_digits(number[4:]))))


def is_iban(number: str) -> bool:
    """Whether a number has the length of its country's IBANs, and the right check digits."""
    if _IBAN_LENGTHS.get(number[:2]) != len(number) or not number[2:4].isdecimal():
        return False
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1


# Numbers without a check digit. US social security numbers, except ranges that are never issued, and two numbers that
# were printed in advertisements and copied into thousands of forms.
_AREA: Final = r"(?!000|666|9|078[ \-]{0,2}05[ \-]{0,2}1120|219[ \-]{0,2}09[ \-]{0,2}9999)[0-9]{3}"
_GROUP, _SERIAL = "(?!00)[0-9]{2}", "(?!0000)[0-9]{4}"
_SHAPES: Final = (
    re.compile(
        r"(?<![0-9A-Za-z])(?<![0-9][\-.,])"
        rf"(?P<number>{_AREA}(?P<mark>[ \-]){_GROUP}(?P=mark){_SERIAL})(?![0-9A-Za-z]|-[0-9])"
    ),
    # Social security numbers without dashes count only after "SSN" or "social security": nine digits can be anything.
    re.compile(
        r"(?:SSN|social security)[^0-9\n]{0,24}"
        rf"(?P<number>{_AREA}[ \-]{{0,2}}{_GROUP}[ \-]{{0,2}}{_SERIAL})(?![0-9])",
        re.IGNORECASE,
    ),
    # UK national insurance numbers without the letters and pairs that are never issued (HMRC's manual NIM39110).
    re.compile(
        r"(?<![0-9A-Za-z])(?P<number>(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]"
        r"[ \-]?[0-9]{2}[ \-]?[0-9]{2}[ \-]?[0-9]{2}[ \-]?[A-D])(?![0-9A-Za-z])"
    ),
    # Passport numbers that follow a word that means passport.
    re.compile(
        r"(?:护照|通行证|passport)[^0-9A-Z\n]{0,3}(?:号码|号|编号|number|no)?[^0-9A-Za-z\n]{0,6}"
        r"(?P<number>(?-i:[A-Z]{1,2}[ ]?[0-9]{7,8}|[0-9]{9}))(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
)


def find_shapes(text: str) -> Iterator[tuple[int, int]]:
    """Find numbers without a check digit by their format or by a word before them."""
    return (match.span("number") for shape in _SHAPES for match in shape.finditer(text))


# The two machine-readable lines of passports (ICAO 9303, TD3).
_SECOND_LINE: Final = re.compile(r"(?<![0-9A-Z<])[0-9A-Z<](?:[ ]?[0-9A-Z<]){42}[ ]?[0-9](?![0-9A-Z<])")
_FIRST_LINE: Final = re.compile(r"(?<![0-9A-Z<])P[A-Z<](?:[ ]?[A-Z<]){20,42}\n?\Z")


def find_passports(text: str) -> Iterator[tuple[int, int]]:
    """Find machine-readable lines of passports; the first line (names) only directly above a valid second line."""
    for match in _SECOND_LINE.finditer(text) if "<" in text else ():
        if is_second_line(match[0].replace(" ", "")):
            names = _FIRST_LINE.search(text, max(0, match.start() - 2 * 44), match.start())
            yield (names.start() if names else match.start()), match.end()


def is_second_line(line: str) -> bool:
    """Whether 44 characters have the right check digits for passport number, date of birth and date of expiry."""
    return (
        all(check_digit(line[begin:end]) == to_digits(line[end]) for begin, end in ((0, 9), (13, 19), (21, 27)))
        and to_digits(line[13:19]).isdecimal()
    )


def check_digit(field: str) -> str:
    """The check digit of a field (ICAO 9303); the filler < counts as 0."""
    return str(_weighed(field.replace("<", "0"), (7, 3, 1)) % 10)


def _weighed(number: str, weights: Sequence[int]) -> int:
    """Weighted sum of characters, with repeating weights: digits have their value, letters 10 (A) to 35."""
    return sum(int(character, 36) * weight for character, weight in zip(number, cycle(weights), strict=False))
