"""Runs Mistral's unmodified SDK against the service: mistralai_sdk.py ocr|files ADDRESS."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from mistralai.client import Mistral
from mistralai.client.errors import MistralError

write = print

MODEL = "mistral-ocr-latest"
DATA = Path("page.png").read_bytes()
URL = "data:image/png;base64," + base64.b64encode(DATA).decode()


def read(client: Mistral) -> None:
    """Send documents as data URLs, and one request that is refused."""
    image = {"type": "image_url", "image_url": URL}
    answer = client.ocr.process(model=MODEL, document=image, confidence_scores_granularity="word", pages=[0])
    write(answer.pages[0].markdown, answer.pages[0].dimensions, answer.usage_info, answer.pages[0].confidence_scores)
    answer = client.ocr.process(model=MODEL, document={"document_url": URL}, table_format="html")
    write(answer.pages[0].markdown, answer.model)
    try:
        client.ocr.process(model=MODEL, document=image, pages="x")
    except MistralError as error:
        write("refused:", error.status_code)


def manage_file(client: Mistral) -> None:
    """Upload, look up, download, read and delete a file."""
    file = client.files.upload(file={"file_name": "page.png", "content": DATA}, purpose="ocr")
    assert client.files.retrieve(file_id=file.id).size_bytes == len(DATA)
    assert file.id in [found.id for found in client.files.list().data]
    assert client.files.download(file_id=file.id).read() == DATA
    signed = client.files.get_signed_url(file_id=file.id, expiry=1)
    for document in ({"type": "file", "file_id": file.id}, {"type": "document_url", "document_url": signed.url}):
        write(client.ocr.process(model=MODEL, document=document).pages[0].markdown)
    write("deleted:", client.files.delete(file_id=file.id).deleted)
    assert file.id not in [found.id for found in client.files.list().data]


with Mistral(api_key="none", server_url=sys.argv[2]) as opened:
    {"ocr": read, "files": manage_file}[sys.argv[1]](opened)
