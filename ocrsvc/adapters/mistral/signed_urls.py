"""Signed URLs of uploaded files: who has one may read its file until it expires.

They are made and checked here, and never fetched.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from ocrsvc.adapters.mistral.uploaded_files import UploadedFile, UploadedFiles
from ocrsvc.errors import BadOption, CallerError

EXPIRES, SIGNATURE = "ocrsvc-expires", "ocrsvc-signature"
"""What stands in the query of a signed URL: until when it holds, in seconds since 1970, and who says so."""

_PATH: Final = re.compile(r"/v1/files/([0-9a-f-]{36})/content")
_MOST_LETTERS: Final = 4096
_HOUR_S: Final = 3600
_LONGEST_H: Final = 24 * 365


class SignatureRefused(CallerError):
    """A signed URL of this service is not good, or not any more."""

    status = 403
    code = "signature_refused"
    title = "The signed URL is refused"


def query_of(files: UploadedFiles, file: UploadedFile, hours: int) -> str:
    """The query of a signed URL of a file, which holds so many hours, and no longer than the file is kept.

    Raises:
        BadOption: Nobody gives that many hours.
    """
    if not 1 <= hours <= _LONGEST_H:
        raise BadOption(f"expiry is {hours}: accepted are whole hours from 1 to {_LONGEST_H}.")
    expires_s = int(min(files.now_s() + hours * _HOUR_S, files.expires_at_s(file)))
    return f"{EXPIRES}={expires_s}&{SIGNATURE}={_signature(files, file.id, str(expires_s))}"


def file_id_of(url: str, files: UploadedFiles) -> str | None:
    """The file that a URL names which this service has signed; None where it is a URL of somebody else.

    At whatever host: behind proxies a service has several names.

    Raises:
        SignatureRefused: It looks like one of this service, and is not good.
    """
    if len(url) > _MOST_LETTERS or SIGNATURE not in url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    found = _PATH.fullmatch(parts.path)
    if found is None:
        return None
    check_signature(files, found[1], dict(parse_qsl(parts.query)))
    return found[1]


def check_signature(files: UploadedFiles, file_id: str, query: Mapping[str, str]) -> None:
    """Raises SignatureRefused unless the query of a URL has a signature for the file that holds now."""
    expires, sent = query.get(EXPIRES, ""), query.get(SIGNATURE, "")
    if not hmac.compare_digest(_signature(files, file_id, expires).encode(), sent.encode("utf-8", "replace")):
        raise SignatureRefused("The signature of the URL does not belong to it.", "Ask for a new signed URL.")
    if int(expires) <= files.now_s():
        raise SignatureRefused("The signed URL has expired.", "Ask for a new one.")


def _signature(files: UploadedFiles, file_id: str, expires: str) -> str:
    signed = f"{file_id}\n{expires}".encode("utf-8", "replace")
    return hmac.new(files.secret(), signed, hashlib.sha256).hexdigest()
