"""Parses PaddleX's JSON object: checks its members as PaddleX does, and makes options and a file of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.errors import BadOption, CallerError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text, parse_flag
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.responses import clamp_side_px, is_url, rotate_option
from ocrsvc.imaging.document import is_pdf
from ocrsvc.records import ReadOptions
from ocrsvc.serving.memory_budget import Share

PDF, IMAGE = 0, 1
INVALID_FILE: Final = "Invalid input file"
UNKNOWN_TYPE: Final = "File type cannot be determined"
UNPROCESSABLE: Final = 422

MAX_TEXT: Final = 1024
"""Letters of a member that is not the file."""

# What JSON can carry exactly.
_LARGEST: Final = 2.0**53


class WrongMembers(BadOption):
    """Members of the JSON object that PaddleX would refuse, each as `validation_error` has it.

    Its text is a list of them, as PaddleX writes it: JSON with blanks between.
    """

    status = UNPROCESSABLE

    def __init__(self, *validation_errors: dict[str, str]) -> None:
        super().__init__(json.dumps(validation_errors))


class WrongFile(CallerError):
    """The member `file` cannot be what it should be."""

    status = UNPROCESSABLE
    code = "bad_file"
    title = "The file cannot be read"


@dataclass(frozen=True, slots=True)
class PaddlexRequest:
    """What one request asks for.

    Attributes:
        data: The bytes of the file.
        options: How it is to be read.
        members: What was sent besides, as the types that the members have.
    """

    data: bytes
    options: ReadOptions
    members: Mapping[str, Any]


def validation_error(kind: str, where: str, message: str) -> dict[str, str]:
    """What PaddleX says of one member."""
    return {"type": kind, "loc": where, "msg": message}


def parse_members(
    members: Mapping[str, Any], share: Share, fetch: Callable[[str], bytes] | None = None
) -> PaddlexRequest:
    """What a JSON object asks for; its file is counted in the share.

    Args:
        members: As sent.
        share: The request's account of memory.
        fetch: Gives the file at a URL, counted too; None where none is fetched.

    Raises:
        QueueFull: Other requests hold the memory that the file needs.
        WrongMembers: Members are missing or of the wrong type, or ask for what no engine here can do.
        WrongFile: The file is an address and none is fetched, or it is not what `fileType` says.
        CallerError: The file is not base64.
        OcrsvcError: As `fetch`.
    """
    values, wrong = _checked(members)
    if not wrong and values.get("useDocUnwarping"):
        wrong = [validation_error("value_error", "body.useDocUnwarping", "This service cannot do that")]
    if wrong:
        raise WrongMembers(*wrong)
    data = _file(values.pop("file"), values.get("fileType"), share, fetch)
    return PaddlexRequest(data, _options(values), values)


def _as_text(value: object) -> str:
    if not isinstance(value, str | bytes):
        raise ValueError("Input should be a valid string")  # noqa: TRY004  what `_checked` collects
    if len(value) > MAX_TEXT:
        raise ValueError(f"String should have at most {MAX_TEXT} characters")
    return as_text(value)


def _as_flag(value: object) -> bool:
    try:
        return value if isinstance(value, bool) else parse_flag(as_text(value))
    except ValueError as error:
        raise ValueError("Input should be a valid boolean, unable to interpret input") from error


def _as_number(value: object) -> float:
    try:
        number = float(value) if type(value) in {int, float} else float(_as_text(value))  # type: ignore[arg-type]  # it is one
    except ValueError as error:
        raise ValueError("Input should be a valid number, unable to parse string as a number") from error
    if abs(number) <= _LARGEST:
        return number
    raise ValueError("Input should be a finite number")


def _as_whole(value: object) -> int:
    number = _as_number(value)
    if number != number // 1:
        raise ValueError("Input should be a valid integer")
    return int(number)


def _as_file_type(value: object) -> int:
    if type(value) is not int or value not in {PDF, IMAGE}:
        raise ValueError("Input should be 0 or 1")
    return value


def _as_limit_type(value: object) -> str:
    if not isinstance(value, str) or value not in {"min", "max"}:
        raise ValueError("Input should be 'min' or 'max'")
    return value


Parse = Callable[[object], object]
# Each member: what it is, and what PaddleX calls a value that it is not.
MEMBERS: Final[Mapping[str, tuple[Parse, str]]] = {
    "file": (_as_text, "string_type"),
    "fileType": (_as_file_type, "literal_error"),
    "useDocOrientationClassify": (_as_flag, "bool_parsing"),
    "useDocUnwarping": (_as_flag, "bool_parsing"),
    "useTextlineOrientation": (_as_flag, "bool_parsing"),
    "textDetLimitSideLen": (_as_whole, "int_parsing"),
    "textDetLimitType": (_as_limit_type, "literal_error"),
    "textDetThresh": (_as_number, "float_parsing"),
    "textDetBoxThresh": (_as_number, "float_parsing"),
    "textDetUnclipRatio": (_as_number, "float_parsing"),
    "textRecScoreThresh": (_as_number, "float_parsing"),
    "returnWordBox": (_as_flag, "bool_parsing"),
    "visualize": (_as_flag, "bool_parsing"),
    "logId": (_as_text, "string_type"),
}


def _checked(members: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The members that have a meaning, as their types, and an error for each that cannot be."""
    values: dict[str, Any] = {}
    wrong = [] if members.get("file") is not None else [validation_error("missing", "body.file", "Field required")]
    for name, (parse, kind) in MEMBERS.items():
        sent = members.get(name)
        try:
            if sent is not None:
                # Text of megabytes is not checked again.
                values[name] = sent if name == "file" and isinstance(sent, str | bytes) else parse(sent)
        except (ValueError, OverflowError) as error:
            wrong.append(validation_error(kind, f"body.{name}", str(error)))
    return values, wrong


def _file(sent: str | bytes, kind: int | None, share: Share, fetch: Callable[[str], bytes] | None) -> bytes:
    """The bytes in `file`, whose kind is read from themselves. Raises as `parse_members`."""
    if is_url(sent):
        if fetch is None:
            raise WrongFile(f"{INVALID_FILE}. Addresses are not fetched.", "Send the file itself, in base64.")
        data = fetch(as_text(sent))
    else:
        data = sent if isinstance(sent, bytes) and is_image(sent) else decode_base64(sent, share)
    if kind is None and not is_image(data):
        raise WrongFile(f"{UNKNOWN_TYPE}.", "Send an image.")
    if kind == PDF and not is_pdf(data):
        raise WrongFile(f"{INVALID_FILE}. It is no PDF.", "Send an image with fileType 1.")
    return data


def _options(values: Mapping[str, Any]) -> ReadOptions:
    side = values.get("textDetLimitSideLen")
    longest = clamp_side_px(side) if side is not None and values.get("textDetLimitType") == "max" else None
    return ReadOptions(
        rotate=rotate_option(values.get("useDocOrientationClassify")),
        max_side=longest,
        min_confidence=values.get("textRecScoreThresh"),
        characters=values.get("returnWordBox") is True,
    )
