"""The service with one route more, whose requests hold the interpreter's lock or end the process; for gunicorn."""

import re

from flask import Flask, Response

from ocrsvc.http.request import request
from ocrsvc.worker.hooks import build_app

HOLDS = b"holds the worker"
DIES = b"ends the worker"

app: Flask = build_app()


@app.post("/hold")
def hold() -> Response:
    """Take the body in as any route does; what it says happens."""
    body = request.content.raw or b""
    if HOLDS in body:
        # Takes 2^40 steps in C, in which no other thread runs.
        re.match("(a|a)*$", "a" * 40 + "b")
    if DIES in body:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    return Response("served")
