"""Request options of the native API: their names, accepted values and parsing.

`api/openapi.yaml` documents them for clients; a test compares it with this module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Final, get_args

from ocrsvc.engines.model.description import ACCEPTED_LANGUAGE, Tier, parse_language
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import as_text, parse_decimal, parse_flag
from ocrsvc.imaging.engine_input import REGION_ACCEPTED, parse_region
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, Ranges, parse_ranges
from ocrsvc.masking import rules as masking
from ocrsvc.masking.rules import parse_kinds
from ocrsvc.models import model_name
from ocrsvc.models.model_name import parse_wanted_model
from ocrsvc.plugins import output_formats
from ocrsvc.results import MAX_SIDE_PX, MIN_SIDE_PX, ModelChoice, ReadOptions, Rotate, TextLayer, Words
from ocrsvc.serving.work_queue import PRIORITIES, Priority

_FORMATS: Final = ("json", *output_formats())
_TRUTHS: Final = "true or false (also 1, 0, yes, no, on, off)"
FORMAT_ALIASES: Final = {"txt": "text"}


@dataclass(frozen=True, slots=True)
class StreamForm:
    """A format that streams the answer page by page; `piece` encodes one event from its kind and a line of JSON."""

    media_type: str
    help: str
    piece: Callable[[str, bytes], bytes]


# Streaming formats by their value of the option `format`.
STREAM_FORMS: Final = {
    "ndjson": StreamForm(
        "application/x-ndjson", "JSON lines, each page as soon as it is read", lambda _kind, part: part + b"\n"
    ),
    "sse": StreamForm(
        "text/event-stream",
        "the same as server-sent events",
        lambda kind, part: b"event: %b\ndata: %b\n\n" % (kind.encode(), part),
    ),
}


@dataclass(frozen=True, slots=True)
class RequestedOptions:
    """The options of one request. Without `formats` the header Accept decides, without `priority` X-Priority."""

    read: ReadOptions
    lines: bool = True
    formats: tuple[str, ...] = ()
    pages: Ranges = ALL
    priority: Priority | None = None
    stages: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `parse` converts stripped text or raises ValueError; `accepted` describes the accepted values."""

    parse: Callable[[str], object]
    accepted: str


def _parse_side(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and MIN_SIDE_PX <= int(text) <= MAX_SIDE_PX):
        raise ValueError(text)
    return int(text)


def _parse_share(text: str) -> float:
    if (share := parse_decimal(text)) > 1:
        raise ValueError(text)
    return share


def parse_words(text: str) -> Words:
    """Parse the option `words`. Raises ValueError, and BadOption if "segmented" lacks the package jieba."""
    if text.lower() != "segmented":
        return parse_flag(text)
    if find_spec("jieba") is None:
        raise BadOption(
            "words=segmented needs the package jieba, which is not installed.",
            "Install the extra: pip install '.[segment]', or use words=true, which returns single Chinese characters.",
        )
    return "segmented"


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse the option `format`: one or more formats in the order sent, without duplicates. Raises ValueError."""
    if text.strip().lower() in STREAM_FORMS:
        return (text.strip().lower(),)
    names = [FORMAT_ALIASES.get(name.strip(), name.strip()) for name in text.lower().split(",")]
    if not all(name in _FORMATS for name in names):
        raise ValueError(text)
    return tuple(dict.fromkeys(names))


def _parse_model(text: str) -> str:
    # Only the model's name is case-insensitive; its label is not.
    name, colon, label = text.partition(":")
    return str(parse_wanted_model(name.lower() + colon + label))


def _choice(values: Sequence[str], accepted: str = "") -> Option:
    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(text)
        return text.lower()

    return Option(parse, accepted or "one of " + ", ".join(values))


def _parse_tier(text: str) -> str | None:
    if text.lower() not in ("auto", *get_args(Tier)):
        raise ValueError(text)
    return text.lower() if text.lower() != "auto" else None


_FLAG: Final = Option(parse_flag, _TRUTHS)

OPTIONS: Final[Mapping[str, Option]] = {
    "rotate": _choice(get_args(Rotate)),
    "detect": _FLAG,
    "upright_boxes": _FLAG,
    "max_side": Option(_parse_side, f"a whole number of pixels from {MIN_SIDE_PX} to {MAX_SIDE_PX}"),
    "min_confidence": Option(_parse_share, "a plain decimal number from 0 to 1"),
    "decoder": _choice(("greedy", "beam"), "greedy or beam"),
    "unwarp": _FLAG,
    "layout": _FLAG,
    "barcodes": Option(lambda text: "only" if text.lower() == "only" else parse_flag(text), f"{_TRUTHS}, or only"),
    "region": Option(parse_region, REGION_ACCEPTED),
    "text_layer": _choice(get_args(TextLayer), "ignore, auto, only or merge"),
    "tables": _FLAG,
    "spaces": _choice(("auto", "model", "visible"), "auto, model or visible"),
    "words": Option(parse_words, f"{_TRUTHS}, or segmented"),
    "characters": _FLAG,
    "mask": Option(parse_kinds, masking.ACCEPTED),
    "model": Option(_parse_model, model_name.ACCEPTED),
    "tier": Option(_parse_tier, "auto, tiny, small or medium"),
    "lang": Option(parse_language, ACCEPTED_LANGUAGE),
    "lines": _FLAG,
    "format": Option(
        parse_formats,
        f"one or more of {', '.join(_FORMATS)}, separated by commas, or {' or '.join(STREAM_FORMS)} alone; txt is text",
    ),
    "pages": Option(parse_ranges, ACCEPTED),
    "partial": _FLAG,
    "priority": _choice(PRIORITIES, " or ".join(PRIORITIES)),
    "timing": _choice(("pages", "stages"), "pages or stages"),
}


# Options that choose the model; every wire format accepts them in the query string.
CHOICE_OPTIONS: Final = tuple(field.name for field in fields(ModelChoice))


def choice_of(values: Iterable[tuple[str, object]]) -> ModelChoice:
    """Parse the model choice; `values` are pairs of a name in CHOICE_OPTIONS and a value. Raises BadOption."""
    options = read_options(values).read
    return ModelChoice(options.model, options.tier, options.lang)


def read_options(sent: Iterable[tuple[str, object]]) -> RequestedOptions:
    """Parse the options in pairs of field name and value; null counts as not sent. Raises BadOption."""
    values: dict[str, Any] = {}
    for name, text in sent:
        value = _parse(name, text)
        if value is not None and values.setdefault(name, value) != value:
            raise BadOption(f"The option {name!r} is given twice, with different values.", "Send it once.")
    values["stages"] = values.pop("timing", None) == "stages"
    if "format" in values:
        values["formats"] = values.pop("format")
    others = {field.name: values.pop(field.name) for field in fields(RequestedOptions) if field.name in values}
    return RequestedOptions(ReadOptions(**values), **others)


def unknown_option(name: str, known: Iterable[str]) -> BadOption:
    """The error for an unknown option; its remedy names the most similar known option, or all of them."""
    near = get_close_matches(name[:40].lower(), known, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(known)}."
    return BadOption(f"Unknown option {name[:40]!r}.", remedy)


def _parse(name: str, value: object) -> object:
    """Parse the value of one option; None for null. Raises BadOption."""
    option = OPTIONS.get(name)
    text = as_text(value).strip()
    if option is None:
        raise unknown_option(name, OPTIONS)
    if value is None:
        return None
    try:
        return option.parse(text)
    except ValueError as error:
        raise BadOption(f"The option {name!r} is {text[:40]!r}: accepted is {option.accepted}.") from error
