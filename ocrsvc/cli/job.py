"""`ocrsvc job`: documents that a service reads while nobody waits: left, asked for, fetched and deleted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.api_key import add_argument, read_key
from ocrsvc.cli.output_file import STANDARD, check_output, writing
from ocrsvc.cli.output_format import JSON, NDJSON, OTHER_NAMES, formats_for, is_zip
from ocrsvc.cli.reading_options import add_reading_options, options_of
from ocrsvc.cli.tls_arguments import add_tls_arguments
from ocrsvc.client.response import Data
from ocrsvc.errors import BadOption, OperatorError

if TYPE_CHECKING:
    from ocrsvc.client import Client

HELP: Final = "leave a document with a service that reads it while nobody waits, and fetch what it has read"
_LONGEST_S: Final = 10.0**6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc job`."""
    steps = parser.add_subparsers(metavar="STEP", required=True)
    submit = _add(steps, "submit", _submit, "leave a document; prints its id")
    submit.add_argument("file", type=Path, metavar="FILE", help="PDF, TIFF or image")
    submit.add_argument("--format", default="", metavar="FORMAT[,FORMAT…]", help="files to be made at the end, as pdf")
    submit.add_argument("--callback", default="", metavar="URL", help="told when the job is done or has failed")
    submit.add_argument("--wait", action="store_true", help="until it is done")
    add_reading_options(submit)
    _with_id(_add(steps, "status", _status, "print how a job is, as JSON"))
    result = _with_id(_add(steps, "result", _result, "write a file of all pages"))
    result.add_argument(
        "--format", help="json, ndjson, pdf, text, md and others; by default what the name after -o ends in, else json"
    )
    result.add_argument("--wait", action="store_true", help="until it is done")
    result.add_argument(
        "-o", "--output", type=Path, default=STANDARD, metavar="FILE", help="- (default) is standard output"
    )
    _with_id(_add(steps, "cancel", _cancel, "delete a job"))
    _add(steps, "list", _list, "print the newest jobs of the API key")


def run(args: argparse.Namespace) -> int:
    """One step; 0, or raises OcrsvcError."""
    try:
        from ocrsvc.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(
            f"ocrsvc job needs the package {error.name}.", "Install the extra ocrsvc[client]."
        ) from error
    own = None if args.cert is None else (args.cert, args.cert_key or args.cert)
    with Client(args.url, api_key=read_key(args.key_file), ca=args.ca, certificate=own) as client:
        args.step(client, args)
    return 0


def _add(
    steps: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    step: Callable[[Client, argparse.Namespace], object],
    help_text: str,
) -> argparse.ArgumentParser:
    parser = steps.add_parser(name, help=help_text, description=f"{help_text[:1].upper()}{help_text[1:]}.")
    parser.add_argument("--url", required=True, help="address of the service")
    add_argument(parser)
    add_tls_arguments(parser)
    parser.set_defaults(step=step)
    return parser


def _with_id(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("id", metavar="ID", help="as submit has printed it")
    return parser


def _submit(client: Client, args: argparse.Namespace) -> None:
    formats = [name for name in args.format.split(",") if name]
    options = {**options_of(args), "pages": args.pages}
    job = client.submit_job(args.file, formats=formats, name=args.file.name, callback=args.callback, **options)
    print(job.id, flush=True)
    if args.wait:
        job.wait(_LONGEST_S)


def _status(client: Client, args: argparse.Namespace) -> None:
    print(json.dumps(client.job(args.id).state().data, indent=2, ensure_ascii=False))


def _result(client: Client, args: argparse.Namespace) -> None:
    check_output(args.output, ())
    if is_zip(args.output):
        raise BadOption("A result of a job is one file, and no zip.", "Fetch each format by itself.")
    asked = None if args.format is None else (OTHER_NAMES.get(args.format, args.format),)
    (name,) = formats_for(asked, args.output, default=JSON, lines=NDJSON)
    job = client.job(args.id)
    if args.wait:
        job.wait(_LONGEST_S)
    data = job.result(name)
    with writing(args.output) as output:
        output.write(data)


def _cancel(client: Client, args: argparse.Namespace) -> None:
    client.job(args.id).cancel()


def _list(client: Client, _args: argparse.Namespace) -> None:
    for job in client.jobs(100):
        print(_line_of(job.data))


def _line_of(data: Data) -> str:
    pages = data["pages"]
    name = visible(str(data["name"]))
    return f"{data['id']}  {data['state']:8}  {pages['done']}/{pages['total']}  {data['created_at']}  {name}"
