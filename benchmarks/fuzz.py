"""Does any input, however malformed, crash, hang or fatten a door of any wire format?

    python benchmarks/fuzz.py [--inputs 1000000] [--seed 1] [--only paddlex]

In process, without HTTP: the WSGI application over a reader that has its answer ready once the image is decoded. Each
format's good requests are bent at random: bytes changed, cut, doubled, pieces of other requests put in, members of JSON
replaced by other values, other content types, paths, methods and queries. A violation is a status of 500 (no engine is
here to fail), an answer later than the limit, or memory that keeps growing. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bench.exchanges import FORM, JSON, Application, Exchange, call, environ_of, exchanges
from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result

from ocrsvc.app import create_app
from ocrsvc.imaging.decode import PixelLimits, decode
from ocrsvc.reader import Reader
from ocrsvc.records import EngineInfo, Image, Line, Page, Reading, Timing
from ocrsvc.settings import Settings
from ocrsvc.worker.memory import read_rss_bytes

LIMIT_S = 2.0
MOST_GROWTH_BYTES = 32 << 20
# What is allocated once, and what caches hold, comes in the first inputs.
WARM_UP_SHARE = 0.2
CONTENT_TYPES = (
    JSON,
    FORM,
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "image/png",
    "text/plain",
    "",
    "\xff",
)
METHODS = ("POST", "POST", "POST", "POST", "POST", "POST", "GET", "PUT", "OPTIONS", "HEAD")
QUERIES = (
    "",
    "",
    "",
    "layout=1",
    "use_det=maybe",
    "is_draw=0&compress=1e9",
    "a=%ff&b=%",
    "image=x&image=y",
    "options=[]",
)
VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, 2**64, -(2**63), 1e308, -0.0, 0.5, "", " ", "x", "true", "nan", "1e999"),
    *("\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "\0", "http://127.0.0.1/x.png", "data:,"),
    *([], {}, [[]], [None], [0], [[1, 2]], [[[1, 2], [3, 4]]], [[["x", 2], [3, 4]]], {"a": {}}, ["image"], "image"),
)
NAMES = (
    *("image", "images", "file", "fileType", "base64", "options", "key", "value", "visualize", "logId", "image_data"),
    *("textDetLimitSideLen", "textRecScoreThresh", "textDetLimitType", "useDocOrientationClassify", "returnWordBox"),
    *("ocr.cls", "ocr.limit_side_len", "tbpu.parser", "tbpu.ignoreArea", "data.format", "img", "compress", "language"),
)
HEADERS = ("HTTP_X_WIDTH", "HTTP_X_HEIGHT", "HTTP_X_CHANNELS", "HTTP_X_REQUEST_TIMEOUT", "HTTP_X_REQUEST_ID")

Asked = tuple[Exchange, str, dict[str, str]]


class DecodingReader:
    """A reader that decodes, as the real one does, and then has its answer ready."""

    ready = True

    def __init__(self) -> None:
        self._limits = PixelLimits(1_000_000)
        self._info = EngineInfo("ready", "none", "1", "cpu", "none", "none")

    def read(self, data: bytes, *_asked: object) -> Reading:
        """Two lines for whatever is an image."""
        image = self.look(data)
        box = ((0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0))
        page = Page(image.width, image.height, 0, (Line("正品", 0.9, box), Line("'\"\\\n", 0.5, box)))
        return Reading(page, self._info, Timing(0.0, 0.0, 0.0, 0.0))

    def read_many(self, datas: Sequence[bytes], *_asked: object) -> list[Any]:
        """Each by itself."""
        return [self._read_or_error(data) for data in datas]

    def look(self, data: bytes) -> Image:
        """The decoded image."""
        return decode(data, self._limits, gray=True)

    def check_room(self, _priority: object) -> None:
        """There always is."""

    def describe(self) -> EngineInfo:
        """What the readings say, too."""
        return self._info

    def _read_or_error(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except Exception as error:  # noqa: BLE001  one image's failure is one entry, as in the real reader
            return error


@dataclass
class Tally:
    """What happened so far."""

    statuses: collections.Counter[int]
    slowest_s: float
    violations: list[str]


def main() -> int:
    """Bend, send, judge; the exit code."""
    asked = _arguments()
    print_machine()
    application = create_app(Settings(max_body_bytes=1 << 20), cast(Reader, DecodingReader())).wsgi_app
    good = [exchange for exchange in exchanges(tiny_png()) if asked.only in {None, exchange.dialect}]
    chance = random.Random(asked.seed)
    tally = Tally(collections.Counter(), 0.0, [])
    warm_bytes, began_s = read_rss_bytes(), time.monotonic()
    for number in range(asked.inputs):
        if number == int(asked.inputs * WARM_UP_SHARE):
            warm_bytes = read_rss_bytes()
        send(application, bend(chance.choice(good), good, chance), tally)
        if len(tally.violations) >= 20:
            break
    growth = read_rss_bytes() - warm_bytes
    if growth > MOST_GROWTH_BYTES:
        tally.violations.append(f"memory grew by {growth >> 20} MiB")
    return _tell(tally, asked, growth, time.monotonic() - began_s)


def send(application: Application, asked: Asked, tally: Tally) -> None:
    """Send one input, and note what is wrong with its answer."""
    exchange, method, headers = asked
    environ = environ_of(exchange.path, exchange.content_type, exchange.body, method) | headers
    began_s = time.monotonic()
    try:
        status, _ = call(application, environ)
    except Exception as error:  # noqa: BLE001  whatever comes out here is a violation
        tally.violations.append(f"{error!r} for {asked!r}"[:2000])
        return
    spent_s = time.monotonic() - began_s
    tally.statuses[status] += 1
    tally.slowest_s = max(tally.slowest_s, spent_s)
    if status == 500 or spent_s > LIMIT_S:
        tally.violations.append(f"{status} after {spent_s:.2f} s for {asked!r}"[:2000])


def bend(exchange: Exchange, others: Sequence[Exchange], chance: random.Random) -> Asked:
    """A good request, made worse once to three times."""
    for _ in range(chance.randint(1, 3)):
        exchange = chance.choice(BENDS)(exchange, others, chance)
    headers = {name: str(chance.choice((*VALUES, 64, 32))) for name in HEADERS if chance.random() < 0.05}
    return exchange, chance.choice(METHODS), headers


def _change_bytes(exchange: Exchange, _others: Sequence[Exchange], chance: random.Random) -> Exchange:
    body = bytearray(exchange.body)
    for _ in range(min(len(body), chance.randint(1, 8))):
        body[chance.randrange(len(body))] = chance.choice((chance.randrange(256), 0, 0x22, 0x25, 0x7B, 0x0D, 0x3D))
    return replace(exchange, body=bytes(body))


def _cut(exchange: Exchange, _others: Sequence[Exchange], chance: random.Random) -> Exchange:
    return replace(exchange, body=exchange.body[: chance.randint(0, len(exchange.body))])


def _double(exchange: Exchange, _others: Sequence[Exchange], chance: random.Random) -> Exchange:
    start, end = sorted(chance.randint(0, len(exchange.body)) for _ in range(2))
    return replace(exchange, body=(exchange.body[:end] + exchange.body[start:end] * 3 + exchange.body[end:])[:200_000])


def _swap_body(exchange: Exchange, others: Sequence[Exchange], chance: random.Random) -> Exchange:
    return replace(exchange, body=chance.choice(others).body)


def _swap_path(exchange: Exchange, others: Sequence[Exchange], chance: random.Random) -> Exchange:
    path = chance.choice(
        [other.path for other in others] + ["/ocr/pixels", "/ocr/batch", "/predict/ocr_rec", "/ocr/pdf"]
    )
    query = chance.choice(QUERIES)
    return replace(exchange, path=f"{path.partition('?')[0]}?{query}")


def _swap_type(exchange: Exchange, _others: Sequence[Exchange], chance: random.Random) -> Exchange:
    return replace(exchange, content_type=chance.choice(CONTENT_TYPES))


def _bend_json(exchange: Exchange, _others: Sequence[Exchange], chance: random.Random) -> Exchange:
    try:
        value = json.loads(exchange.body)
    except ValueError:
        value = {}
    members = value if isinstance(value, dict) else {}
    for _ in range(chance.randint(1, 4)):
        holder = members
        if isinstance(members.get("options"), dict) and chance.random() < 0.5:
            holder = members["options"]
        holder[chance.choice((*NAMES, *members))] = copy.deepcopy(chance.choice(VALUES))
    if chance.random() < 0.3:
        members["options"] = {chance.choice(NAMES): copy.deepcopy(chance.choice(VALUES)) for _ in range(3)}
    return replace(exchange, body=json.dumps(members).encode(), content_type=JSON)


BENDS: tuple[Callable[[Exchange, Sequence[Exchange], random.Random], Exchange], ...] = (
    *(_change_bytes, _cut, _double, _swap_body, _swap_path, _swap_type, _bend_json, _bend_json),
)


def _tell(tally: Tally, asked: argparse.Namespace, growth: int, spent_s: float) -> int:
    sent = sum(tally.statuses.values())
    print(f"{sent} inputs in {spent_s:.0f} s, slowest {tally.slowest_s * 1000:.0f} ms, growth {growth / 2**20:.1f} MiB")
    print("statuses: " + ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items())))
    for violation in tally.violations:
        print(f"VIOLATION: {violation}")
    figures: dict[str, object] = {
        "inputs": sent,
        "seed": asked.seed,
        "slowest_ms": round(tally.slowest_s * 1000, 1),
        "growth_bytes": growth,
        "statuses": dict(sorted(tally.statuses.items())),
        "violations": len(tally.violations),
    }
    write_result("fuzz", figures, asked.out)
    return 1 if tally.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one dialect's name, or native")
    parser.add_argument("--out", type=Path, help="where the figures go; by default benchmarks/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
