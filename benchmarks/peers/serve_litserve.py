"""RapidOCR behind LitServe, as LitServe's documentation writes a service: one class, its defaults kept.

python serve_litserve.py PORT    (in an environment with litserve and rapidocr)
"""

# Without postponed annotations: LitServe looks at the type of `request`.
import base64
import sys
from typing import Any

import litserve
from rapidocr import RapidOCR


class Ocr(litserve.LitAPI):
    """POST /predict with {"image": base64}."""

    def setup(self, device: str) -> None:  # noqa: ARG002  LitServe's signature
        """In the worker process."""
        self.engine = RapidOCR()

    def decode_request(self, request: dict[str, Any]) -> bytes:
        """The bytes of the image."""
        return base64.b64decode(request["image"])

    def predict(self, image: bytes) -> Any:
        """One image."""
        return self.engine(image)

    def encode_response(self, result: Any) -> dict[str, str]:
        """The text alone."""
        return {"text": "\n".join(result.txts or ())}


if __name__ == "__main__":
    # The default limit of 30 s would refuse what waits behind 20 clients.
    server = litserve.LitServer(Ocr(), accelerator="cpu", timeout=600)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
