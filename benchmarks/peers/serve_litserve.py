"""RapidOCR behind LitServe, in one class as in LitServe's documentation.

    python serve_litserve.py PORT [WORKERS] [defaults|best]

Runs in an environment with litserve and rapidocr, and with benchmarks/ in PYTHONPATH.
"""

# No postponed annotations here: LitServe inspects the type of `request`.
import base64
import sys
from typing import Any

import litserve
from bench.rapidocr_settings import open_rapidocr


class Ocr(litserve.LitAPI):
    """POST /predict with {"image": base64}."""

    def __init__(self, choice: str) -> None:
        super().__init__()
        self.choice = choice

    def setup(self, device: str) -> None:  # noqa: ARG002  LitServe's signature
        """Open the engine in the worker process."""
        self.engine = open_rapidocr(self.choice)

    def decode_request(self, request: dict[str, Any]) -> bytes:
        """The bytes of the image."""
        return base64.b64decode(request["image"])

    def predict(self, image: bytes) -> Any:
        """Read one image."""
        return self.engine(image)

    def encode_response(self, result: Any) -> dict[str, str]:
        """Return only the text."""
        return {"text": "\n".join(result.txts or ())}


if __name__ == "__main__":
    # The default limit of 30 s would refuse requests that wait behind 20 clients.
    port, workers, choice = (*sys.argv[1:], *("1", "defaults")[len(sys.argv) - 2 :])
    server = litserve.LitServer(Ocr(choice), accelerator="cpu", timeout=600, workers_per_device=int(workers))
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning")
