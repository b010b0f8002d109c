"""The metrics of models: requests of the protocols that serve models, versions, proofs, and what is loaded."""

from __future__ import annotations

from typing import Final

from ocrsvc.telemetry.metric import counter, gauge, histogram, latest, reading

# The model API.
MODEL_SECONDS: Final = histogram(
    "ocrsvc_model_request_seconds",
    "Seconds of a request to the model API (KServe, TensorFlow Serving), by success and fail.",
    ("outcome",),
)
MODEL_STAGE_SECONDS: Final = histogram(
    "ocrsvc_model_stage_seconds",
    "Seconds that an image answered over the model API spent in decode, queue, and engine.",
    ("stage",),
)
MODEL_LAST: Final = latest(
    "ocrsvc_model_last_request_timestamp_seconds",
    "End of the last request to the model API that succeeded, in Unix time.",
)

# The same by version, where there is a repository of models.
VERSION_REQUESTS: Final = counter(
    "ocrsvc_version_requests",
    "Requests to the model API by the model and the version that they name or were read by, by success and fail.",
    ("model", "version", "outcome"),
)
VERSION_IMAGES: Final = counter(
    "ocrsvc_version_images", "Images read over the model API, by model and version.", ("model", "version")
)
VERSION_SECONDS: Final = counter(
    "ocrsvc_version_seconds",
    "Seconds of requests to the model API by model and version: success and fail of whole ones, and of their images "
    "in decode, queue, and engine.",
    ("model", "version", "stage"),
)

# New versions of models, where there is a repository of them.
MODEL_SWAPS: Final = counter(
    "ocrsvc_model_swaps", "Times that a worker has begun to read with another version of a model."
)
MODEL_REFUSALS: Final = counter(
    "ocrsvc_model_refusals",
    "Versions of models that were refused, by reason: files, reference, open, failed, nonsense, text, slow, memory, "
    "crash and late.",
    ("reason",),
)
MODEL_REFUSED: Final = reading(
    "ocrsvc_model_refused_versions", "Versions in the repository of models that are refused now."
)
MODEL_PROOF_SECONDS: Final = histogram(
    "ocrsvc_model_proof_seconds", "Seconds that a version's proof has taken, that of the version beside it included."
)

# Models of a repository, where there is one; the series of a model are counted under its name by no more than a few.
MODELS_LOADED: Final = gauge("ocrsvc_loaded_models", "Versions of models that are loaded now, in all workers together.")
MODELS_BYTES: Final = gauge(
    "ocrsvc_loaded_models_bytes",
    "Memory that the loaded versions of models take in all workers together, as measured when each was loaded.",
)
MODELS_LIMIT: Final = reading(
    "ocrsvc_loaded_models_limit_bytes", "Memory that the models of one worker may take together (OCRSVC_MODELS_MEMORY)."
)
MODEL_LEASES: Final = counter(
    "ocrsvc_model_leases",
    "Requests that read with a model, by its name and whether it was loaded already: hit or miss.",
    ("model", "outcome"),
)
MODEL_LOADS: Final = counter(
    "ocrsvc_model_loads", "Loads of models, by name and outcome: success or fail.", ("model", "outcome")
)
MODEL_LOAD_SECONDS: Final = histogram("ocrsvc_model_load_seconds", "Seconds that the loads of models took.")
MODEL_UNLOADS: Final = counter(
    "ocrsvc_model_unloads",
    "Versions of models that were closed, by the model's name and why: memory, retired or end.",
    ("model", "reason"),
)
