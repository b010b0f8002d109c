"""`ocrsvc job`: submits a service's background jobs, prints their state, fetches results, deletes jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ocrsvc.batch.human_readable import visible
from ocrsvc.cli.options import FILE, gathered, group, option, output_option, reading_options
from ocrsvc.cli.output import ALIASES, JSON, NDJSON, STDIO, check_output, formats_for, is_zip, writing
from ocrsvc.cli.service import ACCESS, Access
from ocrsvc.client.request import Options
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from ocrsvc.client import Client

_MAX_WAIT_S: Final = 10.0**6
_ID: Final = click.argument("job_id", metavar="ID", help="The id that `submit` printed.")
_WAIT: Final = option("--wait", is_flag=True, help="Wait until the job is done.")


def _client(url: str, **files: Path | None) -> Client:
    """A client that is closed when the command ends. Raises OperatorError."""
    client: Client = click.get_current_context().with_resource(Access(**files).client(url))
    return client


_URL: Final = option("--url", section="Service", required=True, metavar="URL", help="Address of the service.")
_service: Final = gathered("client", _client, _URL, *ACCESS)


@group(
    "ocrsvc job submit book.pdf --url http://127.0.0.1:8000 --format pdf     prints an id",
    "ocrsvc job status ID --url http://127.0.0.1:8000",
    "ocrsvc job result ID --url http://127.0.0.1:8000 --wait -o book-text.pdf",
)
def job() -> None:
    """Have a service read a document in the background, and fetch the result."""


@job.command("submit", examples=("ocrsvc job submit book.pdf --url http://127.0.0.1:8000 --format pdf,md --wait",))
@click.argument("file", type=FILE, help="PDF, TIFF or image.")
@option("--format", "formats", default="", metavar="FORMAT[,FORMAT...]", help="Result files to write, such as pdf.")
@option("--callback", default="", metavar="URL", help="Called when the job is done or has failed.")
@_WAIT
@_service
@reading_options
def _submit(client: Client, file: Path, formats: str, callback: str, *, wait: bool, reading: Options) -> None:
    """Submit a document and print the job's id."""
    wanted = [name for name in formats.split(",") if name]
    submitted = client.submit_job(file, formats=wanted, name=file.name, callback=callback, **reading)
    print(submitted.id, flush=True)
    if wait:
        submitted.wait(_MAX_WAIT_S)


@job.command("status", examples=("ocrsvc job status ID --url http://127.0.0.1:8000",))
@_ID
@_service
def _status(client: Client, job_id: str) -> None:
    """Print a job's state as JSON."""
    print(json.dumps(client.job(job_id).state().data, indent=2, ensure_ascii=False))


@job.command("result", examples=("ocrsvc job result ID --url http://127.0.0.1:8000 --wait -o book-text.pdf",))
@_ID
@option("--format", "form", metavar="FORMAT", help="json, ndjson, pdf, md …; by default by the ending of -o, or json.")
@_WAIT
@output_option(default=[STDIO], help="File to write instead of standard output.")
@_service
def _result(client: Client, job_id: str, form: str | None, output: Path, *, wait: bool) -> None:
    """Write a job's result."""
    check_output(output)
    if is_zip(output):
        raise BadOption("A job's result cannot be a zip.", "Fetch each format separately.")
    formats = None if form is None else (ALIASES.get(form, form),)
    (name,) = formats_for(formats, output, default=JSON, lines=NDJSON)
    submitted = client.job(job_id)
    if wait:
        submitted.wait(_MAX_WAIT_S)
    data = submitted.result(name)
    with writing(output) as file:
        file.write(data)


@job.command("cancel", examples=("ocrsvc job cancel ID --url http://127.0.0.1:8000",))
@_ID
@_service
def _cancel(client: Client, job_id: str) -> None:
    """Delete a job."""
    client.job(job_id).cancel()


@job.command("list", examples=("ocrsvc job list --url http://127.0.0.1:8000 --key-file key",))
@_service
def _list(client: Client) -> None:
    """Print the API key's newest jobs."""
    for state in client.jobs(100):
        data, pages, name = state.data, state.data["pages"], visible(str(state.data["name"]))
        print(f"{data['id']}  {data['state']:8}  {pages['done']}/{pages['total']}  {data['created_at']}  {name}")
