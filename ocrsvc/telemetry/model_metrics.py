"""The metrics of models: requests to the model API, versions, their tests (proofs), and loaded models."""

from typing import Final

from ocrsvc.telemetry.metric import counter, gauge, histogram, latest, reading

# Metrics of requests to the model API.
MODEL_SECONDS: Final = histogram(
    "ocrsvc_model_request_seconds",
    "Seconds of a request to the model API (KServe, TensorFlow Serving), by outcome: success or fail.",
    ("outcome",),
)
MODEL_STAGE_SECONDS: Final = histogram(
    "ocrsvc_model_stage_seconds", "Seconds per image of the model API, in decode, queue and engine.", ("stage",)
)
MODEL_LAST: Final = latest(
    "ocrsvc_model_last_request_timestamp_seconds", "End of the last successful request to the model API, in Unix time."
)

# Metrics of the model API by model version; they exist only with a model repository.
VERSION_REQUESTS: Final = counter(
    "ocrsvc_version_requests",
    "Requests to the model API, by model, version and outcome: success or fail.",
    ("model", "version", "outcome"),
)
VERSION_IMAGES: Final = counter("ocrsvc_version_images", "Images read, by model and version.", ("model", "version"))
VERSION_SECONDS: Final = counter(
    "ocrsvc_version_seconds",
    "Seconds of requests to the model API, by model, version and stage: success or fail (whole requests), and "
    "decode, queue, engine (their images).",
    ("model", "version", "stage"),
)

# Metrics of model versions; they exist only with a model repository.
MODEL_SWAPS: Final = counter("ocrsvc_model_swaps", "Times that a worker switched to another version of a model.")
MODEL_REFUSALS: Final = counter(
    "ocrsvc_model_refusals",
    "Model versions refused, by reason: files, reference, open, failed, nonsense, text, slow, memory, crash, late.",
    ("reason",),
)
MODEL_REFUSED: Final = reading("ocrsvc_model_refused_versions", "Model versions in the repository refused now.")
MODEL_PROOF_SECONDS: Final = histogram(
    "ocrsvc_model_proof_seconds",
    "Seconds that the proof of a model version took, with the measurement of the version it is compared to.",
)

# Metrics of loaded models; they exist only with a model repository. Models beyond 32 share the label "other".
MODELS_LOADED: Final = gauge("ocrsvc_loaded_models", "Model versions loaded now, summed over all workers.")
MODELS_BYTES: Final = gauge(
    "ocrsvc_loaded_models_bytes", "Memory of loaded model versions, summed over all workers, as measured at loading."
)
MODELS_LIMIT: Final = reading(
    "ocrsvc_loaded_models_limit_bytes", "Memory for all models of a worker (OCRSVC_MODELS_MEMORY)."
)
MODEL_LEASES: Final = counter(
    "ocrsvc_model_leases", "Requests for a model, by model and outcome: hit (loaded) or miss.", ("model", "outcome")
)
MODEL_LOADS: Final = counter(
    "ocrsvc_model_loads", "Loads, by model and outcome: success or fail.", ("model", "outcome")
)
MODEL_LOAD_SECONDS: Final = histogram("ocrsvc_model_load_seconds", "Seconds that loads of models took.")
MODEL_UNLOADS: Final = counter(
    "ocrsvc_model_unloads", "Model versions closed, by model and reason: memory, retired or end.", ("model", "reason")
)
