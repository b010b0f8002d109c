"""The metrics of models: requests of the protocols that serve models, versions, proofs, and what is loaded."""

from __future__ import annotations

from typing import Final

from ocrsvc.telemetry.metric import Metric

# The model API.
MODEL_SECONDS: Final = Metric(
    "ocrsvc_model_request_seconds",
    "histogram",
    "Seconds of a request to the model API (KServe, TensorFlow Serving), by success and fail.",
    ("outcome",),
    "seconds",
)
MODEL_STAGE_SECONDS: Final = Metric(
    "ocrsvc_model_stage_seconds",
    "histogram",
    "Seconds that an image answered over the model API spent in decode, queue, and engine.",
    ("stage",),
    "seconds",
)
MODEL_LAST: Final = Metric(
    "ocrsvc_model_last_request_timestamp_seconds",
    "latest",
    "End of the last request to the model API that succeeded, in Unix time.",
    unit="seconds",
)

# The same by version, where there is a repository of models.
VERSION_REQUESTS: Final = Metric(
    "ocrsvc_version_requests",
    "counter",
    "Requests to the model API by the model and the version that they name or were read by, by success and fail.",
    ("model", "version", "outcome"),
)
VERSION_IMAGES: Final = Metric(
    "ocrsvc_version_images", "counter", "Images read over the model API, by model and version.", ("model", "version")
)
VERSION_SECONDS: Final = Metric(
    "ocrsvc_version_seconds",
    "counter",
    "Seconds of requests to the model API by model and version: success and fail of whole ones, and of their images "
    "in decode, queue, and engine.",
    ("model", "version", "stage"),
    "seconds",
)

# New versions of models, where there is a repository of them.
MODEL_SWAPS: Final = Metric(
    "ocrsvc_model_swaps", "counter", "Times that a worker has begun to read with another version of a model."
)
MODEL_REFUSALS: Final = Metric(
    "ocrsvc_model_refusals",
    "counter",
    "Versions of models that were refused, by reason: files, reference, open, failed, nonsense, text, slow, memory, "
    "crash, late, and live for those that were rolled back.",
    ("reason",),
)
MODEL_REFUSED: Final = Metric(
    "ocrsvc_model_refused_versions", "reading", "Versions in the repository of models that are refused now."
)
MODEL_PROOF_SECONDS: Final = Metric(
    "ocrsvc_model_proof_seconds",
    "histogram",
    "Seconds that a version's proof has taken, that of the version beside it included.",
    unit="seconds",
)

# Models of a repository, where there is one; the series of a model are counted under its name by no more than a few.
MODELS_LOADED: Final = Metric(
    "ocrsvc_loaded_models", "gauge", "Versions of models that are loaded now, in all workers together."
)
MODELS_BYTES: Final = Metric(
    "ocrsvc_loaded_models_bytes",
    "gauge",
    "Memory that the loaded versions of models take in all workers together, as measured when each was loaded.",
    unit="bytes",
)
MODELS_LIMIT: Final = Metric(
    "ocrsvc_loaded_models_limit_bytes",
    "reading",
    "Memory that the models of one worker may take together (OCRSVC_MODELS_MEMORY).",
    unit="bytes",
)
MODEL_LEASES: Final = Metric(
    "ocrsvc_model_leases",
    "counter",
    "Requests that read with a model, by its name and whether it was loaded already: hit or miss.",
    ("model", "outcome"),
)
MODEL_LOADS: Final = Metric(
    "ocrsvc_model_loads", "counter", "Loads of models, by name and outcome: success or fail.", ("model", "outcome")
)
MODEL_LOAD_SECONDS: Final = Metric(
    "ocrsvc_model_load_seconds", "histogram", "Seconds that the loads of models took.", unit="seconds"
)
MODEL_UNLOADS: Final = Metric(
    "ocrsvc_model_unloads",
    "counter",
    "Versions of models that were closed, by the model's name and why: memory, retired or end.",
    ("model", "reason"),
)
