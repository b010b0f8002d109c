"""PaddleX's JSON object: its members checked as PaddleX does, and the file and the options that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ocrsvc.adapters.format_values import NotServed
from ocrsvc.errors import BadOption, CallerError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.responses import clamp_side_px, is_url, rotate_option
from ocrsvc.imaging.document import is_pdf
from ocrsvc.records import ReadOptions
from ocrsvc.serving.memory_budget import Share

INVALID_FILE: Final = "Invalid input file"
UNPROCESSABLE: Final = 422
MAX_TEXT: Final = 1024
"""Characters of a member that is not the file."""

# What JSON can carry exactly.
_LARGEST: Final = 2**53


class WrongMembers(BadOption, status=UNPROCESSABLE):
    """Members that PaddleX would refuse; the text is PaddleX's list of them: JSON with blanks between."""

    def __init__(self, *validation_errors: dict[str, str]) -> None:
        super().__init__(json.dumps(validation_errors))


class WrongFile(CallerError, status=UNPROCESSABLE, code="bad_file", title="The file cannot be read"):
    """The member `file` cannot be what it should be."""


def validation_error(kind: str, where: str, message: str) -> dict[str, str]:
    """PaddleX's report of one wrong member."""
    return {"type": kind, "loc": where, "msg": message}


def _text(value: object) -> object:
    # Text of megabytes is not checked again.
    if not isinstance(value, str | bytes):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class Members(BaseModel):
    """The members that have a meaning here."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, allow_inf_nan=False)

    file: Annotated[Any, AfterValidator(_text)]
    file_type: Literal[0, 1] | None = None
    use_doc_orientation_classify: bool | None = None
    use_doc_unwarping: NotServed = False
    use_textline_orientation: bool = False
    text_det_limit_side_len: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)] | None = None
    text_det_limit_type: Literal["min", "max"] | None = None
    text_det_thresh: Number | None = None
    text_det_box_thresh: Number | None = None
    text_det_unclip_ratio: Number | None = None
    text_rec_score_thresh: Number | None = None
    return_word_box: bool = False
    visualize: bool | None = None
    log_id: Annotated[str, Field(max_length=MAX_TEXT)] | None = None

    @property
    def options(self) -> ReadOptions:
        """The reading options."""
        side = self.text_det_limit_side_len
        return ReadOptions(
            rotate=rotate_option(self.use_doc_orientation_classify),
            max_side=clamp_side_px(side) if side is not None and self.text_det_limit_type == "max" else None,
            min_confidence=self.text_rec_score_thresh,
            characters=self.return_word_box,
        )


def parse_members(sent: Mapping[str, Any]) -> Members:
    """The members of a JSON object; null counts as not sent. Raises WrongMembers."""
    values = {}
    for name in map(to_camel, Members.model_fields):
        if (value := sent.get(name)) is not None:
            # Text, unless it is the file, is bounded before pydantic looks at it.
            is_long = isinstance(value, str | bytes) and name != "file"
            values[name] = as_text(value)[: MAX_TEXT + 1] if is_long else value
    try:
        return Members.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        raise WrongMembers(
            *(validation_error(each["type"], f"body.{each['loc'][0]}", each["msg"]) for each in wrong)
        ) from None


def file_of(asked: Members, share: Share, fetch: Callable[[str], bytes] | None = None) -> bytes:
    """The bytes in `file`, or at its URL, counted in the share.

    Raises WrongFile for a URL without a `fetch`, and for another kind than `fileType`; as `decode_base64` and `fetch`.
    """
    sent = asked.file
    if not is_url(sent):
        data = sent if isinstance(sent, bytes) and is_image(sent) else decode_base64(sent, share)
    elif fetch is None:
        raise WrongFile(f"{INVALID_FILE}. Addresses are not fetched.", "Send the file itself, in base64.")
    else:
        data = fetch(as_text(sent))
    if asked.file_type is None and not is_image(data):
        raise WrongFile("File type cannot be determined.", "Send an image.")
    if asked.file_type == 0 and not is_pdf(data):
        raise WrongFile(f"{INVALID_FILE}. It is no PDF.", "Send an image with fileType 1.")
    return data
