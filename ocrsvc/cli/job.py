"""`ocrsvc job`: documents that a service reads while nobody waits: left, asked for, fetched and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.options import FILE, Group, option
from ocrsvc.cli.output import JSON, NDJSON, OTHER_NAMES, STANDARD, check_output, formats_for, is_zip, writing
from ocrsvc.cli.reading_options import Reading, reading_options
from ocrsvc.cli.service import Access, service_access
from ocrsvc.errors import BadOption

_LONGEST_S: Final = 10.0**6
_ID: Final = click.argument("id_", metavar="ID", help="As `submit` has printed it.")
_WAIT: Final = option("--wait", is_flag=True, help="Wait until it is done.")


@click.group(
    cls=Group,
    examples=(
        "ocrsvc job submit book.pdf --url http://127.0.0.1:8000 --format pdf     prints an id",
        "ocrsvc job status ID --url http://127.0.0.1:8000",
        "ocrsvc job result ID --url http://127.0.0.1:8000 --wait -o book-text.pdf",
    ),
)
def job() -> None:
    """Leave a document with a service that reads it while nobody waits, and fetch what it has read."""


def _step(name: str, *examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command that asks the service at --url."""
    url = option("--url", section="Service", required=True, metavar="URL", help="Address of the service.")

    def declare(command: Callable[..., None]) -> click.Command:
        return job.command(name, examples=examples)(url(service_access(command)))

    return declare


@_step(
    "submit",
    "ocrsvc job submit book.pdf --url http://127.0.0.1:8000",
    "ocrsvc job submit book.pdf --url http://127.0.0.1:8000 --format pdf,md --callback https://my.example/done",
)
@click.argument("file", type=FILE, metavar="FILE", help="PDF, TIFF or image.")
@option("--format", "formats", default="", metavar="FORMAT[,FORMAT...]", help="Files to be made at the end, as pdf.")
@option("--callback", default="", metavar="URL", help="Told when the job is done or has failed.")
@_WAIT
@reading_options
def _submit(url: str, access: Access, file: Path, formats: str, callback: str, *, wait: bool, reading: Reading) -> None:
    """Leave a document; prints its id."""
    wanted = [name for name in formats.split(",") if name]
    with access.client(url) as client:
        submitted = client.submit_job(
            file, formats=wanted, name=file.name, callback=callback, pages=reading.pages, **reading.options
        )
        print(submitted.id, flush=True)
        if wait:
            submitted.wait(_LONGEST_S)


@_step("status")
@_ID
def _status(url: str, access: Access, id_: str) -> None:
    """Print how a job is, as JSON."""
    with access.client(url) as client:
        print(json.dumps(client.job(id_).state().data, indent=2, ensure_ascii=False))


@_step("result")
@_ID
@option(
    "--format",
    "form",
    metavar="FORMAT",
    help="json, ndjson, pdf, text, md and others; by default what the name after -o ends in, else json.",
)
@_WAIT
@option(
    "-o", "--output", type=FILE, default=STANDARD, metavar="FILE", help="File to write; by default standard output."
)
def _result(url: str, access: Access, id_: str, form: str | None, output: Path, *, wait: bool) -> None:
    """Write a file of all pages."""
    check_output(output)
    if is_zip(output):
        raise BadOption("A result of a job is one file, and no zip.", "Fetch each format by itself.")
    asked = None if form is None else (OTHER_NAMES.get(form, form),)
    (name,) = formats_for(asked, output, default=JSON, lines=NDJSON)
    with access.client(url) as client:
        found = client.job(id_)
        if wait:
            found.wait(_LONGEST_S)
        data = found.result(name)
    with writing(output) as file:
        file.write(data)


@_step("cancel")
@_ID
def _cancel(url: str, access: Access, id_: str) -> None:
    """Delete a job."""
    with access.client(url) as client:
        client.job(id_).cancel()


@_step("list")
def _list(url: str, access: Access) -> None:
    """Print the newest jobs of the API key."""
    with access.client(url) as client:
        for one in client.jobs(100):
            print(_line_of(one.data))


def _line_of(data: Any) -> str:
    pages, name = data["pages"], visible(str(data["name"]))
    return f"{data['id']}  {data['state']:8}  {pages['done']}/{pages['total']}  {data['created_at']}  {name}"
