"""Runs Google's unmodified Cloud Vision client over REST against the service: google_vision_sdk.py ADDRESS."""

from __future__ import annotations

import sys
from pathlib import Path

from google.api_core.exceptions import BadRequest
from google.cloud import vision

write = print
IMAGE, WRONG = (vision.Image(content=data) for data in (Path("page.png").read_bytes(), b"no image"))
OPTIONS = {"api_endpoint": sys.argv[1], "api_key": "none"}

client = vision.ImageAnnotatorClient(transport="rest", client_options=OPTIONS)
(page,) = client.document_text_detection(image=IMAGE).full_text_annotation.pages
word = page.blocks[0].paragraphs[0].words[0]
write("".join(symbol.text for symbol in word.symbols), word.symbols[-1].property.detected_break.type_.name)
whole, first, *_ = client.text_detection(image=IMAGE).text_annotations
write("text:", whole.description, first.description, first.bounding_poly.vertices[2])
features = [vision.Feature(type_=vision.Feature.Type.TEXT_DETECTION)]
requests = [vision.AnnotateImageRequest(image=image, features=features) for image in (WRONG, IMAGE)]
write("errors:", [answer.error.code for answer in client.batch_annotate_images(requests=requests).responses])
try:
    client.batch_annotate_images(requests=[])
except BadRequest as error:
    write("refused:", error.code.value, error.reason)
