"""Options that say how pages are read, for every command that reads some."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ocrsvc.cli.options import gathered, option

if TYPE_CHECKING:
    from ocrsvc.client.request import Options


class Reading(NamedTuple):
    """Which pages of documents are read, all of them by default, and how, in the names of a service's options."""

    pages: str | None
    options: Options


def _reading(pages: str | None, *, segmented: bool, **options: Any) -> Reading:
    return Reading(pages, {**options, "words": "segmented" if segmented else options["words"]})  # type: ignore[typeddict-item]


_choice: Final = partial(option, section="What is read")
_flag: Final = partial(_choice, is_flag=True, flag_value=False, default=True)
_found: Final = partial(option, section="What is found besides the text")

reading_options: Final = gathered(
    "reading",
    _reading,
    _choice("--pages", metavar="PAGES", help="Pages of documents, such as 1-3,7 or 5-; all by default."),
    _choice("--region", metavar="X,Y,WIDTH,HEIGHT", help="The part of each page that is read, in pixels."),
    _choice("--lang", metavar="TAG", help="Language of the text, such as zh or en; auto chooses by line."),
    _choice("--model", metavar="MODEL", help="Model that reads: NAME, NAME/VERSION or NAME:LABEL; see docs/models.md."),
    _choice("--tier", type=click.Choice(["tiny", "small", "medium"]), help="How large a model reads."),
    _choice(
        "--rotate",
        type=click.Choice(["auto", "0", "90", "180", "270"]),
        default="auto",
        help="Clockwise turn that makes the page upright; auto, the default, finds it.",
    ),
    _flag("--line", "detect", help="Each image is one line: detect nothing."),
    _flag("--no-unwarp", "unwarp", help="Read curved pages as they are."),
    _choice(
        "--spaces",
        type=click.Choice(["auto", "model", "visible"]),
        default="auto",
        help="Spaces between Chinese and Latin: by the gaps of the whole page (auto, the default), as the model alone "
        "reads them, or wherever a gap is seen.",
    ),
    _choice(
        "--text-layer",
        type=click.Choice(["ignore", "auto", "only", "merge"]),
        default="ignore",
        help="The text that a page of a PDF has itself: nothing of it (ignore, the default), what is sound of it, "
        "nothing else, or it and whatever else stands on the page; see docs/text_layer.md.",
    ),
    _choice(
        "--mask", metavar="KIND[,...]", help="What becomes stars: id, phone, card, mail, own; see docs/masking.md."
    ),
    _found("--words", is_flag=True, help="Words of each line, in JSON; Chinese by character."),
    _found("--segmented", is_flag=True, help="The same, with Chinese words by a dictionary."),
    _found("--characters", is_flag=True, help="Characters of each word, too."),
    _found("--layout", is_flag=True, help="Regions, such as titles and figures; JSON has them."),
    _found("--tables", is_flag=True, help="Tables; JSON has them."),
    _found(
        "--barcodes",
        type=click.Choice(["true", "only"]),
        is_flag=False,
        flag_value="true",
        metavar="[only]",
        help="Bar codes and QR codes, or only them and no text; JSON has them.",
    ),
)
