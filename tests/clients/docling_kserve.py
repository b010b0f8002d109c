"""Reads a PDF page with docling's own OCR model with its KserveV2OcrOptions, over HTTP and gRPC.

python docling_kserve.py HTTP_ADDRESS GRPC_ADDRESS PDF

Only the OCR model runs, because docling's PDF pipeline needs a layout model of several gigabytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docling.backend.pypdfium2_backend import PyPdfiumDocumentBackend
from docling.datamodel.accelerator_options import AcceleratorOptions
from docling.datamodel.base_models import InputFormat, Page
from docling.datamodel.document import ConversionResult, InputDocument
from docling.datamodel.pipeline_options import KserveV2OcrOptions, OcrMode
from docling.models.stages.ocr.kserve_v2_ocr_model import KserveV2OcrModel

http, grpc, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def read(options: KserveV2OcrOptions) -> None:
    """Print the lines of the first page, or docling's errors."""
    document = InputDocument(file, InputFormat.PDF, PyPdfiumDocumentBackend)
    result = ConversionResult(input=document)
    page = Page(page_no=1)
    page._backend = document._backend.load_page(0)
    page.size = page._backend.get_size()
    (page,) = KserveV2OcrModel(True, None, options, AcceleratorOptions(), enable_remote_services=True)(result, [page])
    lines = [(cell.text, cell.confidence) for cell in page.cells]
    print(options.transport, lines, [error.error_message for error in result.errors])  # noqa: T201  the test reads it


read(KserveV2OcrOptions(url=http, transport="http", mode=OcrMode.FULL_PAGE))
read(KserveV2OcrOptions(url=grpc, mode=OcrMode.FULL_PAGE, lang=["ch"], scale=4.0))
read(KserveV2OcrOptions(url=http, transport="http", mode=OcrMode.FULL_PAGE, use_binary_data=False))
