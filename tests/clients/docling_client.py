"""Converts an image and a PDF with docling's client, by each of its methods for files, and prints their texts.

python docling_client.py URL IMAGE PDF
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

from docling.datamodel.base_models import OutputFormat
from docling.datamodel.service.options import ConvertDocumentsOptions
from docling.datamodel.service.targets import InBodyTarget, ZipTarget
from docling.service_client import DoclingServiceClient, ServiceError, StatusWatcherKind

url, image, pdf = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
every = ConvertDocumentsOptions(to_formats=[OutputFormat.MARKDOWN, OutputFormat.TEXT, OutputFormat.HTML])
with DoclingServiceClient(url, poll_client_interval=0.1) as client:
    print(client.health().status, client.version()["name"])  # noqa: T201  the test reads it
    for source in (image, pdf):
        document = client.convert(source).document
        print(f"{source.suffix}: {document.export_to_text()} on {sorted(document.pages)}")  # noqa: T201
polling = DoclingServiceClient(url, status_watcher=StatusWatcherKind.POLLING, poll_client_interval=0.1)
with polling as client:
    texts = [result.document.texts[0].text for result in client.convert_all([image, pdf, image])]
    print(f"all: {texts}")  # noqa: T201
    archive = client.submit(image, options=every, target=ZipTarget()).result(timeout=30)
    print(f"zip: {sorted(zipfile.ZipFile(io.BytesIO(archive.content)).namelist())}")  # noqa: T201
    job = client.submit(pdf, target=InBodyTarget())
    print(f"job: {job.result(timeout=30).status.value}, then {job.poll(wait=1).task_status.value}")  # noqa: T201
    try:
        client.submit(pdf, target=InBodyTarget(), output_formats=[OutputFormat.VTT])
    except ServiceError as error:
        print(f"refused: {error}")  # noqa: T201
