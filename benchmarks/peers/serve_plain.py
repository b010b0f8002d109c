"""RapidOCR or TurboOCR behind Python's own HTTP server: image bytes in, text out.

    python serve_plain.py rapidocr PORT '{"engines": 1, "choice": "defaults"}'
    python serve_plain.py turboocr PORT '{"replicas": 1, "models_dir": …, …}'

Runs in an environment with rapidocr, or with one of TurboOCR's engine wheels, and with benchmarks/ in PYTHONPATH. It
reads one page per engine or replica at once; other requests wait.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Read = Callable[[bytes], str]


def rapidocr_reader(settings: dict[str, Any]) -> Read:
    """A reader that distributes pages over several RapidOCR engines, each with its own models."""
    from bench.rapidocr_settings import open_rapidocr

    idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(settings["engines"]):
        idle.put(open_rapidocr(settings["choice"]))

    def read(image: bytes) -> str:
        engine = idle.get()
        try:
            return "\n".join(engine(image).txts or ())
        finally:
            idle.put(engine)

    return read


def turboocr_reader(settings: dict[str, Any]) -> Read:
    """A reader with TurboOCR, which distributes pages over its replicas itself."""
    import turboocr_engine

    ocr = turboocr_engine.OCR("small", keep_image=False, allow_download=False, **settings)
    print(ocr.info(), flush=True)
    return lambda image: "\n".join(line.text for line in ocr.read(image))


def serve(read: Read, port: int) -> None:
    """Serve POST / with the bytes of an image."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            image = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status, text = 200, read(image)
            except Exception as error:  # noqa: BLE001  the benchmark counts it as a page that failed
                status, text = 500, repr(error)
            body = json.dumps({"text": text}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    opened = {"rapidocr": rapidocr_reader, "turboocr": turboocr_reader}[sys.argv[1]]
    serve(opened(json.loads(sys.argv[3])), int(sys.argv[2]))
