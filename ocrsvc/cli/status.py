"""`ocrsvc status`: the workers of a running service, and its main metrics."""

from __future__ import annotations

import argparse
import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from ocrsvc.cli.api_key import add_argument, read_key
from ocrsvc.cli.overview import describe_overview
from ocrsvc.cli.tls_arguments import add_tls_arguments, context_of
from ocrsvc.client.request import key_header
from ocrsvc.errors import OperatorError
from ocrsvc.settings.api_key import API_KEY_VARIABLE
from ocrsvc.settings.load import read_settings
from ocrsvc.tls.client_context import context_of_own_service

HELP: Final = "print the workers and the main numbers of a running service"
_ANSWER_S: Final = 10.0
_UNIX: Final = "unix:"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  what to ask when it listens on all
_COLUMNS: Final = ("slot", "pid", "state", "reason", "requests", "in_flight", "rss_bytes", "forked_s_ago")

_KEY_CODES: Final = {"key_missing", "key_refused", "scope_missing"}
_SAID_BYTES: Final = 200

Samples = Sequence[tuple[str, Mapping[str, str], float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc status`."""
    parser.add_argument(
        "url", nargs="?", help="http://host:port, https://… or unix:path; by default where OCRSVC_BIND listens"
    )
    add_argument(parser)
    add_tls_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask, and print; raises OperatorError when there is no answer."""
    (url, context), key = service_of(args), read_key(args.key_file)
    overview = orjson.loads(fetch(url, "/ops/overview", key, context))
    numbers = describe_numbers(parse(fetch(url, "/metrics", key, context).decode()))
    for line in (*describe_workers(overview), "", *numbers, *describe_overview(overview)):
        print(line)
    return 0


def service_of(args: argparse.Namespace) -> tuple[str, ssl.SSLContext | None]:
    """The address to ask, and what to verify it with: the arguments', else those of the settings' own service.

    Raises:
        OperatorError: The settings, or the arguments' files, cannot be used.
    """
    context = context_of(args)
    if args.url is not None:
        return args.url, context
    settings = read_settings()
    if settings.tls_certificate is None:
        return address_of(settings.bind), context
    if args.ca is None:
        context = context_of_own_service(settings.tls_certificate, args.cert, args.cert_key)
    return address_of(settings.bind, is_tls=True), context


def address_of(bind: str, *, is_tls: bool = False) -> str:
    """Where a service that listens on this address can be asked."""
    if bind.startswith(_UNIX):
        return bind
    host, _, port = bind.rpartition(":")
    host = _ANY_ADDRESS.get(host.strip("[]"), host.strip("[]"))
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def fetch(url: str, path: str, key: str = "", context: ssl.SSLContext | None = None) -> bytes:
    """The body of a successful answer to a request with this key, if any. Raises OperatorError, BadOption."""
    status, body = ask(url, path, key_header(key) if key else {}, context)
    if status != http.client.OK:
        raise refusal_of(f"{url}{path}", status, body)
    return body


def ask(
    url: str, path: str, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of the answer to a GET; over TLS verified by the context, or as the system does.

    Raises:
        OperatorError: There is no answer.
    """
    connection = _connect(url, context)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise OperatorError(
            f"{url} does not answer: {error}.",
            "Is the service running, and is this its address? A certificate of an authority of your own needs --ca; a "
            "service that asks for one of its clients' needs --cert.",
        ) from error
    finally:
        connection.close()


def refusal_of(address: str, status: int, body: bytes) -> OperatorError:
    """What the answer of this status says: the detail of the service's own problem, else the beginning of the text."""
    try:
        problem = orjson.loads(body)
        said, remedy, code = str(problem["detail"]), problem.get("remedy"), problem.get("code")
    except (orjson.JSONDecodeError, TypeError, KeyError):
        said, remedy, code = " ".join(body[:_SAID_BYTES].decode("utf-8", "replace").split()), None, None
    if code in _KEY_CODES:
        remedy = f"Name a file with a key of the scope operate with --key-file, or set {API_KEY_VARIABLE}."
    what = f"{address} answers {status}: {said}" if said else f"{address} answers {status}."
    return OperatorError(
        what, remedy or "Is this its address, and http:// or https:// as it speaks? Its log says more."
    )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connect(url: str, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if url.startswith(_UNIX):
        return _UnixConnection(url.removeprefix(_UNIX))
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    except ValueError as error:
        raise OperatorError(f"{url} is not an address: {error}.", "Write http://host:port.") from error


def describe_workers(answer: Mapping[str, Any]) -> Iterator[str]:
    """A table of the workers, one line each."""
    yield f"arbiter {answer['arbiter_pid'] or 'unknown'}, {len(answer['workers'])} workers"
    rows = [[_cell(worker[column]) for column in _COLUMNS] for worker in answer["workers"]]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def describe_numbers(samples: Samples) -> Iterator[str]:
    """The main numbers, one line each."""
    yield f"requests    {_by(samples, 'ocrsvc_requests_total', 'code')}"
    yield f"refused     {_by(samples, 'ocrsvc_refused_total', 'reason')}"
    yield f"in flight   {_sum(samples, 'ocrsvc_in_flight_requests'):.0f}"
    yield f"waiting     {_sum(samples, 'ocrsvc_queue_waiting_images'):.0f} images"
    yield f"read        {_sum(samples, 'ocrsvc_images_total'):.0f} images"
    yield f"            {_sum(samples, 'ocrsvc_lines_total'):.0f} lines"
    yield f"mean times  {_means(samples)}"
    yield f"recycled    {_by(samples, 'ocrsvc_recycles_total', 'reason')}"
    yield f"boot fails  {_sum(samples, 'ocrsvc_boot_failures_total'):.0f}"
    yield f"most alive  {_sum(samples, 'ocrsvc_workers_most'):.0f} workers"


def parse(text: str) -> Samples:
    """Name, labels and value of each sample in Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _sum(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for found, has, value in samples if found == name and labels.items() <= has.items())


def _by(samples: Samples, name: str, label: str) -> str:
    """The total of a counter, and what each value of a label has of it, as far as it is not 0."""
    values = dict.fromkeys(has[label] for found, has, _ in samples if found == name)
    counts = {value: _sum(samples, name, **{label: value}) for value in values}
    parts = ", ".join(f"{value} {count:.0f}" for value, count in counts.items() if count)
    return f"{sum(counts.values()):.0f}" + (f" ({parts})" if parts else "")


def _means(samples: Samples) -> str:
    means = []
    for stage in ("decode", "queue", "engine", "total"):
        count = _sum(samples, "ocrsvc_stage_seconds_count", stage=stage)
        if count:
            means.append(f"{stage} {1000 * _sum(samples, 'ocrsvc_stage_seconds_sum', stage=stage) / count:.1f} ms")
    return ", ".join(means) or "-"
