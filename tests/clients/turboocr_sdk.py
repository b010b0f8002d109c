"""Calls every method of TurboOCR's Python SDK over HTTP or gRPC and prints the results.

python turboocr_sdk.py http URL IMAGE PDF
python turboocr_sdk.py grpc TARGET IMAGE PDF
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from turboocr import Client, GrpcClient, ImageDecodeError

PIXELS = bytes(range(256)) * 24


def show(name: str, *values: object) -> None:
    print(f"{name}:", *values)  # noqa: T201  the test reads it


def first(text: str) -> str:
    return text.partition("\n")[0]


def over_http(url: str, image: Path, pdf: Path) -> None:
    """Make the SDK's twelve calls; the SDK validates each answer against its models."""
    data = image.read_bytes()
    with Client(base_url=url) as client:
        show("health", client.health(ready=True).ok)
        show("capabilities", client.capabilities().features.layout)
        show("image", first(client.recognize_image(image).text), first(client.recognize_image(data).text))
        show("base64", first(client.recognize_base64(base64.b64encode(data).decode()).text))
        show("pixels", first(client.recognize_pixels(PIXELS, width=64, height=32).text))
        show("batch", client.recognize_batch([data, b"x"]).errors)
        page = client.recognize_pdf(pdf, dpi=100, include_blocks=True, tables=True).pages[0]
        show("pdf", first(page.results[0].text), page.width, page.mode.value, page.reading_order)
        show("searchable", client.make_searchable_pdf(pdf)[:5], client.make_searchable_pdf(image)[:5])
        show("stream", [event.event for event in client.stream(pdf)])
        show("to_markdown", bool(client.to_markdown(pdf).nodes), bool(client.to_markdown(image).nodes))
        show("page_markdown", first(client.page_markdown(image)))
        show("pdf_markdown", first(client.pdf_markdown(pdf)), len(client.pdf_markdown(pdf, as_pages=True).pages))
        try:
            client.recognize_image(b"x")
        except ImageDecodeError as error:
            show("refused", error.code)


def over_grpc(target: str, image: Path, pdf: Path) -> None:
    """Call every method of the SDK's gRPC client."""
    with GrpcClient(target=target) as client:
        show("health", client.health().ok)
        show("image", first(client.recognize_image(image, layout=True).text))
        show("pixels", first(client.recognize_pixels(PIXELS, width=64, height=32).text))
        show("batch", len(client.recognize_batch([image, image]).batch_results))
        page = client.recognize_pdf(pdf, dpi=100).pages[0]
        show("pdf", first(page.results[0].text), page.width)
        show("searchable", client.make_searchable_pdf(pdf)[:5])
        try:
            client.recognize_image(b"x")
        except ImageDecodeError as error:
            show("refused", error.code)


if __name__ == "__main__":
    {"http": over_http, "grpc": over_grpc}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
