"""The options of a request to the native API, each declared once: name, values, default, help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Final, get_args

from ocrsvc.engines.model import languages
from ocrsvc.engines.model.description import Tier
from ocrsvc.engines.model.languages import parse_language
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import as_text, parse_decimal, parse_flag
from ocrsvc.http.stream_forms import STREAM_FORMS
from ocrsvc.imaging import rectangle
from ocrsvc.imaging.page_ranges import ACCEPTED, ALL, PATTERN, Ranges, parse_ranges
from ocrsvc.imaging.rectangle import parse_rectangle
from ocrsvc.masking import kinds
from ocrsvc.masking.kinds import parse_kinds
from ocrsvc.models import model_name
from ocrsvc.models.model_name import parse_wanted_model
from ocrsvc.records import MAX_SIDE_PX, MIN_SIDE_PX, Barcodes, ModelChoice, ReadOptions, Rotate, TextLayer, Words
from ocrsvc.registry import output_formats
from ocrsvc.serving.work_queue import PRIORITIES, Priority

_ROTATIONS: Final = get_args(Rotate)
_TIERS: Final = get_args(Tier)
_FORMATS: Final = ("json", *output_formats())
OTHER_NAMES: Final = {"txt": "text"}
"""Of formats."""
SEGMENTED: Final = "segmented"
ONLY: Final = "only"


@dataclass(frozen=True, slots=True)
class RequestedOptions:
    """What one request asks for: of the reader, of the answer, and of the queue (None: as its header says).

    Of formats, each is there once; none leaves it to the header Accept.
    """

    read: ReadOptions
    lines: bool
    formats: tuple[str, ...]
    pages: Ranges
    priority: Priority | None
    stages: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option.

    Attributes:
        parse: The value of stripped text; raises ValueError.
        accepted: What `parse` takes, for people.
        schema: What `parse` takes, as JSON Schema.
        default: The value when nothing is sent, as sent.
        help: One sentence.
    """

    parse: Callable[[str], object]
    accepted: str
    schema: Mapping[str, object]
    default: str | None
    help: str


def _parse_side(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and MIN_SIDE_PX <= int(text) <= MAX_SIDE_PX):
        raise ValueError(text)
    return int(text)


def _parse_share(text: str) -> float:
    share = parse_decimal(text)
    if share > 1:
        raise ValueError(text)
    return share


def parse_words(text: str) -> Words:
    """The option `words`. Raises ValueError, and BadOption where the segmenter is not installed."""
    if text.lower() != SEGMENTED:
        return parse_flag(text)
    if find_spec("jieba") is None:
        raise BadOption(
            "words=segmented needs the package jieba, which is not installed.",
            "Install the extra ocrsvc[segment], or ask for words=true, which gives Chinese by character.",
        )
    return SEGMENTED


def parse_barcodes(text: str) -> Barcodes:
    """The option `barcodes`. Raises ValueError."""
    return "only" if text.lower() == ONLY else parse_flag(text)


def parse_formats(text: str) -> tuple[str, ...]:
    """The option `format`: one or more, each once, in the order in which they are sent. Raises ValueError."""
    names = [name.strip() for name in text.lower().split(",")]
    names = [OTHER_NAMES.get(name, name) for name in names]
    if text.strip().lower() in STREAM_FORMS:
        return (text.strip().lower(),)
    if not all(name in _FORMATS for name in names):
        raise ValueError(text)
    return tuple(dict.fromkeys(names))


def _formats_schema() -> dict[str, object]:
    name = "|".join((*_FORMATS, *OTHER_NAMES))
    return {
        "anyOf": [{"enum": [*_FORMATS, *STREAM_FORMS]}, {"type": "string", "pattern": f"^(?:{name})(?:,(?:{name}))*$"}]
    }


def _parse_model(text: str) -> str:
    """The option `model`: names of models have no capitals, labels may. Raises ValueError."""
    head, sign, label = text.partition(":")
    return str(parse_wanted_model(head.lower() + sign + label))


def _words_schema() -> dict[str, object]:
    """What this service accepts: the description of a service names nothing that it refuses."""
    segmented = [{"const": SEGMENTED}] if find_spec("jieba") is not None else []
    return {"anyOf": [{"type": "boolean"}, *segmented]}


def _bool(default: str, help_text: str) -> Option:
    return Option(parse_flag, "true or false (also 1, 0, yes, no, on, off)", {"type": "boolean"}, default, help_text)


def _choice(values: Sequence[str], accepted: str, default: str | None, help_text: str) -> Option:
    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(text)
        return text.lower()

    return Option(parse, accepted, {"type": "string", "enum": list(values)}, default, help_text)


OPTIONS: Final[Mapping[str, Option]] = {
    "rotate": _choice(
        _ROTATIONS,
        "one of " + ", ".join(_ROTATIONS),
        "auto",
        "Clockwise turn in degrees that makes the page upright; auto finds it.",
    ),
    "detect": _bool("true", "Find the lines first; false reads the whole image as one line."),
    "upright_boxes": _bool("false", "Give boxes horizontal and vertical sides."),
    "max_side": Option(
        _parse_side,
        f"a whole number of pixels from {MIN_SIDE_PX} to {MAX_SIDE_PX}",
        {"type": "integer", "minimum": MIN_SIDE_PX, "maximum": MAX_SIDE_PX},
        None,
        "Longest side of the image that the engine sees, in pixels; larger images are shrunk first. Boxes stay in "
        "pixels of the image sent. Left out, the engine decides.",
    ),
    "min_confidence": Option(
        _parse_share,
        "a plain decimal number from 0 to 1",
        {"type": "number", "minimum": 0, "maximum": 1},
        None,
        "Lines read with less confidence are left out. Left out itself, the engine decides.",
    ),
    "decoder": _choice(
        ("greedy", "beam"),
        "greedy or beam",
        "greedy",
        "How the engine ppocr spells a line: greedy takes the likeliest path, beam searches for the likeliest text.",
    ),
    "unwarp": _bool(
        "true",
        "Flatten a page whose lines show that it is curved or folded before it is read; false reads every page as it "
        "is. Boxes stay in pixels of the image sent. The engine ppocr does.",
    ),
    "layout": _bool("false", "Find the page's regions, such as titles, text, figures and tables, in JSON."),
    "barcodes": Option(
        parse_barcodes,
        "true or false (also 1, 0, yes, no, on, off), or only",
        {"anyOf": [{"type": "boolean"}, {"const": ONLY}]},
        "false",
        "Find the page's bar codes and QR codes too, in JSON: type, text and box; only gives them and reads no text.",
    ),
    "region": Option(
        parse_rectangle,
        rectangle.ACCEPTED,
        {"type": "string", "pattern": rectangle.PATTERN},
        None,
        "The part of each page that is read, in pixels of the page as displayed; what of it lies outside the page is "
        "left out. Boxes stay in pixels of the whole page.",
    ),
    "text_layer": _choice(
        get_args(TextLayer),
        "ignore, auto, only or merge",
        "ignore",
        "What becomes of the text that a page of a PDF has itself: ignore reads every page as it is drawn; auto takes "
        "sound text as it is and has the engine read the rest of pages on which much else stands; merge has it read "
        "whatever else stands; only takes the PDF's text alone. Each line's source says where it comes from.",
    ),
    "tables": _bool("false", "Find the page's tables: rows, columns and cells, HTML and Markdown, in JSON."),
    "spaces": _choice(
        ("auto", "model", "visible"),
        "auto, model or visible",
        "auto",
        "Where the engine ppocr puts spaces between Chinese and Latin: auto decides by the gaps of the whole page, "
        "model leaves it to the recognizer, visible puts one wherever a gap is seen.",
    ),
    "words": Option(
        parse_words,
        "true or false (also 1, 0, yes, no, on, off), or segmented",
        _words_schema(),
        "false",
        "Give each line its words with boxes and confidences, Chinese by character; segmented joins Chinese characters "
        "to words by a dictionary, if the service has it. The engine ppocr knows words.",
    ),
    "characters": _bool("false", "Give each word its characters with boxes and confidences; asks for words, too."),
    "mask": Option(
        parse_kinds,
        kinds.ACCEPTED,
        {"type": "string", "pattern": kinds.PATTERN},
        None,
        "What becomes stars in the answer: numbers of persons, organizations and accounts (id), telephone numbers "
        "(phone), payment cards (card), mail addresses (mail), the service's own patterns (own); JSON lists the "
        "places.",
    ),
    "model": Option(
        _parse_model,
        model_name.ACCEPTED,
        {"type": "string", "pattern": f"^(?:{model_name.PATTERN})$"},
        None,
        "Which model reads, also its version (NAME/VERSION) or label (NAME:LABEL); GET /v1/ocr/models lists them. Left "
        "out, tier and lang decide, and without those the service.",
    ),
    "tier": _choice(
        _TIERS,
        "one of " + ", ".join(_TIERS),
        None,
        "How large a model reads: tiny is the quickest, medium the most exact. Left out, the service decides.",
    ),
    "lang": Option(
        parse_language,
        languages.ACCEPTED,
        {"type": "string", "pattern": f"^(?:{languages.PATTERN}|{languages.AUTO})$"},
        None,
        "The language of the text, which chooses the model and its recognizer; auto chooses a recognizer by line. Left "
        "out, the service decides.",
    ),
    "lines": _bool("true", "Give the list of lines with boxes and confidences in JSON; false gives the text alone."),
    "format": Option(
        parse_formats,
        f"one or more of {', '.join(_FORMATS)}, separated by commas, or {' or '.join(STREAM_FORMS)} alone; txt is text",
        _formats_schema(),
        None,
        f"The form of the answer: JSON; {'; '.join(form.help for form in output_formats().values())}. Several come as "
        f"a zip. Alone: {'; '.join(form.help for form in STREAM_FORMS.values())}. Left out, the header Accept decides "
        "where it names the media type of one, else JSON.",
    ),
    "pages": Option(
        parse_ranges,
        ACCEPTED,
        {"type": "string", "pattern": PATTERN},
        None,
        "Which pages of a document are read. Left out, all are.",
    ),
    "partial": _bool(
        "false",
        "At the deadline, answer with the pages that are read, and an error in the place of each other one; else the "
        "whole answer is 504.",
    ),
    "priority": _choice(
        PRIORITIES,
        " or ".join(PRIORITIES),
        None,
        "Batch lets interactive requests go first. Left out, the header X-Priority decides, else interactive.",
    ),
    "timing": _choice(
        ("pages", "stages"),
        "pages or stages",
        "pages",
        "What timing in JSON tells: pages adds up the pages' times; stages adds the seconds of each stage of the whole "
        "request, also in the header Server-Timing, which goes with every format.",
    ),
}


CHOICE_OPTIONS: Final = tuple(field.name for field in fields(ModelChoice))
"""Those that choose among models; a query may have them in every format."""


def choice_of(sent: Iterable[tuple[str, object]]) -> ModelChoice:
    """What these of CHOICE_OPTIONS ask for. Raises BadOption."""
    asked = read_options(sent).read
    return ModelChoice(asked.model, asked.tier, asked.lang)


def read_options(sent: Iterable[tuple[str, object]]) -> RequestedOptions:
    """What the fields that were sent ask for; null counts as not sent.

    Raises:
        BadOption: A name is unknown, a value is not accepted, or an option is given twice with different values.
    """
    values = _parse_all(sent)
    lines, formats, priority = values.pop("lines", True), values.pop("format", ()), values.pop("priority", None)
    pages: Ranges = values.pop("pages", ALL)
    stages = values.pop("timing", None) == "stages"
    partial = values.pop("partial", False)
    return RequestedOptions(ReadOptions(**values), lines, formats, pages, priority, stages, partial)


def _parse_all(sent: Iterable[tuple[str, object]]) -> dict[str, Any]:
    values: dict[str, object] = {}
    for name, text in sent:
        value = _parse(name, text)
        if value is not None and values.setdefault(name, value) != value:
            raise BadOption(f"The option {name!r} is given twice, with different values.", "Send it once.")
    return values


def _parse(name: str, sent: object) -> object:
    """The value of one option, None for null; raises BadOption."""
    option = OPTIONS.get(name)
    text = as_text(sent).strip()
    if option is None:
        raise BadOption(
            f"{name[:40]!r} is no option (its value is {text[:40]!r}).", f"The options are: {', '.join(OPTIONS)}."
        )
    if sent is None:
        return None
    try:
        return option.parse(text)
    except ValueError as error:
        raise BadOption(f"The option {name!r} is {text[:40]!r}: accepted is {option.accepted}.") from error
