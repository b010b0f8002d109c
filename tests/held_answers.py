"""An application whose POST /v1/ocr answers line by line, as a test says."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import orjson
from web_support import running_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_WAIT_S: Final = 30.0


class HeldAnswers:
    """WSGI middleware; `gone` is set once a client has closed its connection before the end."""

    def __init__(self, app: WSGIApplication) -> None:
        self.app = app
        self.asked: list[str] = []
        self.accepted: list[str] = []
        self.gone = threading.Event()
        self._lines: queue.SimpleQueue[object] = queue.SimpleQueue()

    def send(self, line: object) -> None:
        """Let a line leave; None ends the answer."""
        self._lines.put(line)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/v1/ocr":
            return self.app(environ, start_response)
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        self.asked.append(environ["QUERY_STRING"])
        self.accepted.append(environ["HTTP_ACCEPT"])
        start_response("200 OK", [("Content-Type", "application/x-ndjson")])
        return self._answer()

    def _answer(self) -> Iterator[bytes]:
        try:
            while (line := self._lines.get(timeout=_WAIT_S)) is not None:
                yield orjson.dumps(line) + b"\n"
        except GeneratorExit:
            self.gone.set()
            raise


@contextmanager
def held_server() -> Iterator[tuple[str, HeldAnswers]]:
    """The address of a server, and what its answers are."""
    with running_app() as app:
        held = HeldAnswers(app.wsgi_app)
        server = make_server("127.0.0.1", 0, held, threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.port}", held
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def page_line(number: int, total: int, lines: int = 2) -> dict[str, object]:
    """A page as it leaves, with a word of each letter in each line."""
    box = [[10, 0], [90, 0], [90, 1], [10, 1]]
    texts = [f"page {number} line {place}" for place in range(lines)]
    return {
        "page": number,
        "width": 100,
        "height": lines + 1,
        "angle": 0,
        "text": "\n".join(texts),
        "lines": [
            {
                "text": text,
                "confidence": 0.9,
                "box": [[x, y + place] for x, y in box],
                "words": [{"text": word, "confidence": 0.9, "box": box} for word in text.split()],
            }
            for place, text in enumerate(texts)
        ],
        "pages_total": total,
        "pages_wanted": total,
    }


END: Final = {
    "end": {"id": "e", "engine": {"name": "held", "model": "none"}, "timing": {"total_s": 1.5}, "pages_read": 1}
}
