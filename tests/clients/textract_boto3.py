"""Calls the service with the unmodified Textract client of boto3: textract_boto3.py ADDRESS."""

from __future__ import annotations

import sys
from pathlib import Path

import boto3

write = print
PAGE, DOCUMENT = Path("page.png").read_bytes(), Path("document.pdf").read_bytes()
SIGNED = {"region_name": "eu-central-1", "aws_access_key_id": "none", "aws_secret_access_key": "none"}

client = boto3.client("textract", endpoint_url=sys.argv[1], **SIGNED)
for data in (PAGE, DOCUMENT):
    answer = client.detect_document_text(Document={"Bytes": data})
    write([(block["BlockType"], block.get("Text")) for block in answer["Blocks"]], answer["DocumentMetadata"])
try:
    client.detect_document_text(Document={"Bytes": b"no image"})
except client.exceptions.UnsupportedDocumentException as error:
    write("refused:", error.response["ResponseMetadata"]["HTTPStatusCode"])
try:
    client.analyze_document(Document={"Bytes": PAGE}, FeatureTypes=["TABLES"])
except client.exceptions.ClientError as error:
    write("refused:", error.response["Error"]["Code"])
