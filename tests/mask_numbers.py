"""Numbers for tests of masking, with check digits by formulas of their own, which are not those of the service.

The service looks check signs up in tables or adds weighted digits from the left; here each is searched for: the one
sign with which the published congruence holds.
"""

from __future__ import annotations

import random
from typing import Final

_CREDIT_SIGNS: Final = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_BODY_SIGNS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def resident_id(place: str, born: str, order: str) -> str:
    """GB 11643: the sum of a(i) * 2**(i - 1), from the right, is 1 modulo 11, with X for ten."""
    body = place + born + order
    for value in range(11):
        values = [value, *map(int, reversed(body))]
        if sum(digit * 2**power for power, digit in enumerate(values)) % 11 == 1:
            return body + ("X" if value == 10 else str(value))
    raise AssertionError("one of eleven fits")


def credit_code(head: str, body: str) -> str:
    """GB 32100 over GB 11714: eight signs of head and place, eight of the organization, and both check signs."""
    weights = [3, 7, 9, 10, 5, 8, 4, 2]
    total = sum(_BODY_SIGNS.index(sign) * weight for sign, weight in zip(body, weights, strict=True))
    whole = head + body + next("0123456789X"[value] for value in range(11) if (total + value) % 11 == 0)
    powers = [3**place % 31 for place in range(17)]
    total = sum(_CREDIT_SIGNS.index(sign) * power for sign, power in zip(whole, powers, strict=True))
    return whole + next(sign for value, sign in enumerate(_CREDIT_SIGNS) if (total + value) % 31 == 0)


def iban(country: str, account: str) -> str:
    """ISO 13616: the number that reads 1 modulo 97, its head put last."""
    for check in range(2, 99):
        moved = f"{account}{country}{check:02d}"
        digits = "".join(str(ord(sign) - 55) if sign.isalpha() else sign for sign in moved)
        if int(digits) % 97 == 1:
            return f"{country}{check:02d}{account}"
    raise AssertionError("one of 97 fits")


def card(prefix: str, length: int, chance: random.Random) -> str:
    """ISO 7812: doubled every second digit from the right, casting out nines, all add up to a multiple of ten."""
    body = prefix + "".join(str(chance.randrange(10)) for _ in range(length - 1 - len(prefix)))
    for check in range(10):
        total = 0
        for place, digit in enumerate(reversed(f"{body}{check}")):
            doubled = int(digit) * (1 + place % 2)
            total += doubled - 9 * (doubled > 9)
        if total % 10 == 0:
            return f"{body}{check}"
    raise AssertionError("one of ten fits")


def with_wrong_check(number: str) -> str:
    """The number with another last digit."""
    return number[:-1] + str((int(number[-1], 36) + 3) % 10)


def in_groups(number: str, *sizes: int, mark: str = " ") -> str:
    """The number in groups of these sizes, the last of what is left."""
    groups, at = [], 0
    for size in sizes:
        groups.append(number[at : at + size])
        at += size
    return mark.join([*groups, number[at:]] if at < len(number) else groups)


def full_width(text: str) -> str:
    """The text in full-width signs."""
    return "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text)
