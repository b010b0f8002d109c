"""URLs of objects: which texts are such, and what of them may be shown and written down."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from ocrsvc.errors import BadOption

_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,20})://")
_USER: Final = re.compile(r"(?<=://)[^/\s@]*@")
_QUERY: Final = re.compile(r"(?<=://)([^\s?'\"<>]*)\?[^\s'\"<>]+")
_STARS: Final = "***"


def is_url(text: str) -> bool:
    """Whether it begins as `protocol://`."""
    return _URL.match(text) is not None


def protocol_of(url: str) -> str:
    """The part before `://`, in lower case; "" of what is no URL."""
    match = _URL.match(url)
    return match[1].lower() if match else ""


def without_secrets(text: str) -> str:
    """A text in which the URLs have neither users and passwords nor queries, whose parameters may be tokens."""
    return _QUERY.sub(rf"\1?{_STARS}", _USER.sub(f"{_STARS}@", text))


def check_no_secrets(url: str) -> None:
    """Raises BadOption for a URL that holds a password or a token: the plan, the ledger and the report name it."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise BadOption(
            f"{without_secrets(url)} holds a user or password, which would be written into the ledger and the report.",
            "Leave it out, and give it where the library of the object store looks for it: AWS_… for s3://, ~/.netrc "
            "for https://. See docs/batch.md.",
        )
    if _is_signed(parts.query):
        raise BadOption(
            f"{without_secrets(url)} is signed, and the signature would be written into the ledger and the report.",
            "Name the object by its own URL, such as s3://bucket/name, with credentials in the environment.",
        )


def _is_signed(query: str) -> bool:
    names = {name.partition("=")[0].lower() for name in query.split("&")}
    return any(
        re.search("signature|token|credential|password|secret|api_?key|accesskey|^sig$|^auth$", name) for name in names
    )
