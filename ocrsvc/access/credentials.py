"""Finds the key in what a caller sends: `Authorization` (Bearer, or Basic with the key as password), or `X-API-Key`.

Pure: texts in, a credential out. Nothing here says whether a key is right, and no error names what was sent.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from typing import Final

LONGEST: Final = 256
"""Letters of the longest text that can be a key; a longer one is cut, and so is no key."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a caller shows.

    Attributes:
        secret: The key as it was sent; empty where there is none. Never printed.
        by_browser: Whether it came by the Basic scheme: a browser sends that again by itself, whichever page asks.
    """

    secret: str = field(default="", repr=False)
    by_browser: bool = False


NOTHING: Final = Credential()


def credential_of(authorization: str, *others: str) -> Credential:
    """The key in the header `Authorization`, or else the first of other places that is not empty.

    Args:
        authorization: The header; schemes that are neither Bearer nor Basic are passed over.
        others: What stands in other places, such as the header `X-API-Key`.
    """
    scheme, _, rest = authorization.strip().partition(" ")
    name = scheme.lower()
    if name == "bearer" and (secret := rest.strip()):
        return Credential(secret[: LONGEST + 1])
    if name == "basic" and (secret := _password(rest.strip())):
        return Credential(secret[: LONGEST + 1], by_browser=True)
    return next((Credential(sent.strip()[: LONGEST + 1]) for sent in others if sent.strip()), NOTHING)


def _password(encoded: str) -> str:
    """The password of the Basic scheme (RFC 7617), or the name where it is empty, as in `curl -u KEY:`."""
    try:
        decoded = binascii.a2b_base64(encoded, strict_mode=False).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
    name, _, password = decoded.partition(":")
    return password or name
