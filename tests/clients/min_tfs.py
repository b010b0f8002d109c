"""Runs the unmodified min-tfs-client against the service: min_tfs.py HOST:PORT IMAGE EXPECTED_FIRST_LINE."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import numpy as np
from min_tfs_client.requests import TensorServingClient
from min_tfs_client.tensors import tensor_proto_to_ndarray


def main() -> None:
    """Request a prediction; the client sends text, not bytes, so the image is base64."""
    address, file, expected = sys.argv[1:]
    host, port = address.split(":")
    client = TensorServingClient(host, int(port))
    image = base64.b64encode(Path(file).read_bytes()).decode()
    outputs = client.predict_request("ocr", {"image": np.array([image])}).outputs
    assert tensor_proto_to_ndarray(outputs["texts"])[0][0] == expected
    assert tensor_proto_to_ndarray(outputs["boxes"]).shape[2:] == (4, 2)
    assert tensor_proto_to_ndarray(outputs["scores"]).dtype == np.float32
    print("all good")  # noqa: T201  the test reads it


main()
