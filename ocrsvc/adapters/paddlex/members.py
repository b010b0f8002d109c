"""JSON requests to PaddleX's serving API: their members, and the file in them."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ocrsvc.adapters.context import URLS_NOT_FETCHED, NotServed
from ocrsvc.errors import BadOption, CallerError
from ocrsvc.http import responses
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text
from ocrsvc.http.parsed_body import is_image
from ocrsvc.http.responses import is_url
from ocrsvc.imaging.document import is_pdf
from ocrsvc.results import ReadOptions
from ocrsvc.serving.memory_budget import Share

INVALID_FILE: Final = "Invalid input file"
UNPROCESSABLE: Final = 422
MAX_TEXT: Final = 1024
"""Maximum characters of members other than the file."""

M = TypeVar("M", bound="Members")

# The largest whole number that JSON represents exactly.
_LARGEST: Final = 2**53


class WrongMembers(BadOption, status=UNPROCESSABLE):
    """Members that PaddleX refuses; the message is a JSON list of the errors, formatted as PaddleX formats it."""

    def __init__(self, *validation_errors: dict[str, str]) -> None:
        super().__init__(json.dumps(validation_errors))


class WrongFile(CallerError, status=UNPROCESSABLE, code="bad_file", title="The file cannot be read"):
    """The member `file` has no readable content."""


def validation_error(kind: str, where: str, message: str) -> dict[str, str]:
    """The entry for one wrong member in PaddleX's list of errors."""
    return {"type": kind, "loc": where, "msg": message}


def _text(value: object) -> object:
    # Check only the type: pydantic's own check of strings would read megabytes of text.
    if not isinstance(value, str | bytes):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class Members(BaseModel):
    """The members of a request to /ocr that this service uses."""

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
    def read_options(self) -> ReadOptions:
        """The options for the reader that the request's members select."""
        side = self.text_det_limit_side_len
        return ReadOptions(
            rotate=responses.rotate_option(self.use_doc_orientation_classify),
            max_side=responses.clamp_side_px(side) if side is not None and self.text_det_limit_type == "max" else None,
            min_confidence=self.text_rec_score_thresh,
            characters=self.return_word_box,
        )


def parse_members(members: Mapping[str, Any], kind: type[M]) -> M:
    """Validate a JSON object's members; null counts as absent. Raises WrongMembers."""
    values = {}
    for name in map(to_camel, kind.model_fields):
        if (value := members.get(name)) is not None:
            # Truncate long values before pydantic checks them, except `file`, which is the image or document.
            is_long = isinstance(value, str | bytes) and name != "file"
            values[name] = as_text(value)[: MAX_TEXT + 1] if is_long else value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        refused = [validation_error(each["type"], f"body.{each['loc'][0]}", each["msg"]) for each in wrong]
        raise WrongMembers(*refused) from None


def file_of(members: Members, share: Share, fetch: Callable[[str], bytes] | None = None) -> bytes:
    """Decode `file` from base64, or fetch it if it is a URL. Raises WrongFile, and as `decode_base64` and `fetch`."""
    file = members.file
    if not is_url(file):
        data = file if isinstance(file, bytes) and is_image(file) else decode_base64(file, share)
    elif fetch is None:
        raise WrongFile(f"{INVALID_FILE}. {URLS_NOT_FETCHED}", "Send the file itself, in base64.")
    else:
        data = fetch(as_text(file))
    if members.file_type is None and not is_image(data):
        raise WrongFile("File type cannot be determined.", "Send an image.")
    if members.file_type == 0 and not is_pdf(data):
        raise WrongFile(f"{INVALID_FILE}. It is not a PDF.", "Send an image with fileType 1.")
    return data
