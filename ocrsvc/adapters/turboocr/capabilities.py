"""What a TurboOCR server says of itself: GET /capabilities, and the same document in its gRPC health answer."""

from __future__ import annotations

from typing import Final

from ocrsvc.adapters.turboocr.parameters import DEFAULT_DPI, MODES
from ocrsvc.adapters.turboocr.pixels import MAX_SIDE_PX
from ocrsvc.http.parsed_body import MAX_IMAGES
from ocrsvc.settings.settings import Settings

RESPONSE_MODE: Final = "json_bytes"
"""gRPC answers carry the JSON of the HTTP answer."""

ENDPOINTS: Final = (
    *("/health", "/health/live", "/health/ready", "/capabilities"),
    *("/ocr", "/ocr/raw", "/ocr/batch", "/ocr/pixels", "/ocr/pdf", "/ocr/markdown", "/ocr/stream"),
)

_MEBIBYTE: Final = 1 << 20


def capabilities_of(settings: Settings) -> dict[str, object]:
    """The document. Of the settings max_pages, pdf_dpi and max_body_bytes are used."""
    features = {
        "layout": True,
        "tables": True,
        "formulas": False,
        "autorotate": True,
        "profile_endpoint": False,
        "grpc_response_mode": RESPONSE_MODE,
    }
    modes = list(MODES) if settings.pdf_dpi else []
    return {
        "build": "cpu",
        "features": features,
        "pdf": {"modes": modes, "default_dpi": DEFAULT_DPI, "max_pages": settings.max_pages},
        "limits": {
            "max_body_mb": max(1, settings.max_body_bytes // _MEBIBYTE),
            "max_image_dim": MAX_SIDE_PX,
            "max_batch_images": MAX_IMAGES,
        },
        "endpoints": list(ENDPOINTS),
    }
