"""Prints the text of images, with the client in the package; run as `python read.py URL IMAGE…`."""

import sys

from ocrsvc.client import Client
from ocrsvc.errors import OcrsvcError

url, *images = sys.argv[1:]
with Client(url, timeout_s=60) as client:
    for image, outcome in zip(images, client.read_many(images, at_once=4), strict=True):
        if isinstance(outcome, OcrsvcError):
            print(f"{image}: {outcome}", file=sys.stderr)
            continue
        for line in outcome.pages[0].lines:
            print(f"{line.confidence:.2f} {line.text}")
