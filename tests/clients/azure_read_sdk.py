"""Runs Azure's unmodified SDK for Document Intelligence against the service: azure_read_sdk.py ADDRESS."""

from __future__ import annotations

import sys
from pathlib import Path

from azure.ai.documentintelligence import DocumentIntelligenceClient
from azure.ai.documentintelligence.models import AnalyzeDocumentRequest, AnalyzeOutputOption
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

write = print
DATA = Path("page.png").read_bytes()
READ = "prebuilt-read"
BYTES = "application/octet-stream"

with DocumentIntelligenceClient(sys.argv[1], AzureKeyCredential("none")) as client:
    body = AnalyzeDocumentRequest(bytes_source=DATA)
    asked = {"output": [AnalyzeOutputOption.PDF], "string_index_type": "utf16CodeUnit"}
    poller = client.begin_analyze_document(READ, body, **asked)
    result, id_ = poller.result(), poller.details["operation_id"]
    page = result.pages[0]
    write(result.content, result.model_id, page.unit, page.words[0], page.lines[0], result.paragraphs[0])
    write(b"".join(client.get_analyze_result_pdf(READ, id_))[:5])
    client.delete_analyze_result(READ, id_)
    try:
        client.delete_analyze_result(READ, id_)
    except ResourceNotFoundError as error:
        write("gone:", error.error.code)
    document = Path("document.pdf").read_bytes()
    layout = client.begin_analyze_document(
        "prebuilt-layout", document, content_type=BYTES, pages="1", output_content_format="markdown"
    ).result()
    write(layout.content, layout["contentFormat"], layout.pages[0]["unit"])
    try:
        client.begin_analyze_document(READ, b"no image", content_type=BYTES)
    except HttpResponseError as error:
        write("refused:", error.status_code, error.error.innererror["code"])
