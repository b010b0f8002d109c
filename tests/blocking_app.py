"""The service with one more route, /hold, whose requests block the interpreter or kill the worker; for gunicorn."""

import re

from flask import Flask, Response

from ocrsvc.http.request import request
from ocrsvc.worker.hooks import build_app

HOLDS = b"holds the worker"
DIES = b"ends the worker"

app: Flask = build_app()


@app.post("/hold")
def hold() -> Response:
    """Read the body like any route, then block or kill the worker if the body asks for it."""
    body = request.content.raw or b""
    if HOLDS in body:
        # Takes 2^40 steps in C while holding the GIL.
        re.match("(a|a)*$", "a" * 40 + "b")
    if DIES in body:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    return Response("served")
