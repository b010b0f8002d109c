"""Arguments that say how pages are read, for every command that reads some."""

from __future__ import annotations

import argparse
from typing import Literal

from ocrsvc.client.request import Options


def add_reading_options(parser: argparse._ActionsContainer) -> None:
    """Declare them."""
    parser.add_argument(
        "--rotate",
        choices=("auto", "0", "90", "180", "270"),
        default="auto",
        help="clockwise turn that makes the page upright; auto finds it",
    )
    parser.add_argument("--no-unwarp", action="store_true", help="read curved pages as they are")
    parser.add_argument(
        "--spaces",
        choices=("auto", "model", "visible"),
        default="auto",
        help="spaces between Chinese and Latin: by the gaps of the whole page, as the model alone reads them, or "
        "wherever a gap is seen",
    )
    parser.add_argument("--words", action="store_true", help="give each line its words, in JSON; Chinese by character")
    parser.add_argument("--segmented", action="store_true", help="the same, with Chinese words by a dictionary")
    parser.add_argument("--characters", action="store_true", help="give each word its characters, too")
    parser.add_argument("--pages", help="which pages of documents, such as 1-3,7 or 5-; all, if left out")
    parser.add_argument(
        "--barcodes",
        nargs="?",
        const="true",
        choices=("true", "only"),
        help="find bar codes and QR codes too, or only them; JSON has them",
    )
    parser.add_argument("--region", metavar="X,Y,WIDTH,HEIGHT", help="the part of each page that is read, in pixels")
    parser.add_argument(
        "--text-layer",
        choices=("ignore", "auto", "only", "merge"),
        default="ignore",
        help="the text that a page of a PDF has itself: nothing of it, what is sound of it, nothing else, or it and "
        "whatever else stands on the page; see docs/text_layer.md",
    )
    parser.add_argument("--layout", action="store_true", help="find regions too; JSON has them")
    parser.add_argument("--tables", action="store_true", help="find tables too; JSON has them")
    parser.add_argument(
        "--mask", help="what becomes stars: id, phone, card, mail, own, separated by commas; see docs/masking.md"
    )
    parser.add_argument("--model", help="model that reads: NAME, NAME/VERSION or NAME:LABEL; see docs/models.md")
    parser.add_argument("--tier", choices=("tiny", "small", "medium"), help="how large a model reads")
    parser.add_argument("--lang", help="language of the text, such as zh or en; auto chooses by line")
    parser.add_argument("--line", action="store_true", help="each image is one line: detect nothing")


def options_of(args: argparse.Namespace) -> Options:
    """The options that say how to read, as a service takes them."""
    words: Literal["segmented"] | bool = "segmented" if args.segmented else bool(args.words)
    return {
        "rotate": args.rotate,
        "detect": not args.line,
        "unwarp": not args.no_unwarp,
        "barcodes": args.barcodes,
        "region": args.region,
        "text_layer": args.text_layer,
        "layout": args.layout,
        "tables": args.tables,
        "spaces": args.spaces,
        "words": words,
        "characters": args.characters,
        "mask": args.mask,
        "model": args.model,
        "tier": args.tier,
        "lang": args.lang,
    }
