"""Engine settings: the engine and its device, each engine's own settings, and isolation in child processes."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, PositiveFloat, SecretStr, ValidationInfo

from ocrsvc.plugins import engines
from ocrsvc.settings.group import ByteCount, MemoryAmount, Names, SettingsGroup, setting

_GPU: Final = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,80}")
_CONTRADICTIONS: Final = (("cpu", "cuda"), ("cpu", "tensorrt"), ("cuda", "cpu"), ("cuda", "openvino"))


def _check_gpus(names: tuple[str, ...]) -> tuple[str, ...]:
    if names != ("all",) and not all(_GPU.fullmatch(name) for name in names):
        raise ValueError("not GPU names")
    return tuple(dict.fromkeys(names))


def _check_engine(name: str) -> str:
    if name not in engines():
        raise ValueError("unknown engine")
    return name


def _check_provider(name: str, info: ValidationInfo) -> str:
    if (info.data.get("device"), name) in _CONTRADICTIONS:
        raise ValueError("contradicts the device")
    return name


EngineName = Annotated[str, AfterValidator(_check_engine)]
Gpus = Annotated[Names, AfterValidator(_check_gpus)]
Provider = Annotated[Literal["auto", "cpu", "openvino", "cuda", "tensorrt"], AfterValidator(_check_provider)]


class EngineSettings(SettingsGroup, title="Engine"):
    """The engine and its device."""

    engine: EngineName = setting("ppocr", "Engine that reads pages.", accepted=lambda: "one of " + ", ".join(engines()))
    device: Literal["cpu", "cuda", "auto"] = setting(
        "auto", "Where the engine computes; cuda does not start without a usable GPU, auto uses a GPU if there is one."
    )
    gpus: Gpus = setting(
        (),
        "GPUs that the workers are distributed over, as nvidia-smi's numbers or UUIDs (also of MIG devices), or all; "
        "by default those in CUDA_VISIBLE_DEVICES, and without it all.",
        accepted="all, or GPU numbers and UUIDs (GPU-…, MIG-…), separated by commas (in the file a list of texts)",
    )


class PpocrEngineSettings(SettingsGroup, title="Engine ppocr"):
    """Settings of ppocr. The check of `provider` needs `device`, so EngineSettings must be validated first."""

    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] = setting(
        "auto",
        "Precision of ppocr: fp16 needs a GPU, bf16 OpenVINO and a CPU with bf16, int8 (the recognizer) a CPU; on a "
        "CPU auto uses the fastest precision that gives the same text in a test at the first start.",
    )
    provider: Provider = setting(
        "auto",
        "Execution provider of ppocr: cpu, cuda or tensorrt of ONNX Runtime, or openvino; auto is cuda if the device "
        "allows it, else as OCRSVC_PRECISION needs. A named provider that does not work stops the start.",
        accepted="one of auto, cpu, openvino, cuda, tensorrt that does not contradict the device",
    )
    imaging: Literal["auto", "cpu"] = setting(
        "auto",
        "Where ppocr prepares pixels for models on a GPU: auto is the GPU if cupy is installed and gives the same text "
        "as the CPU.",
    )
    gpu_streams: int = setting(
        2, "Concurrent runs of a model on a GPU per worker, each with its own memory.", "streams", between=(1, 8)
    )
    gpu_arena_bytes: ByteCount | None = setting(
        None, "GPU memory that the arena of each session may take; by default no limit.", between=(64 * 2**20, 2**40)
    )
    batch_pixels: int = setting(
        32 * 48 * 320,
        "Largest batch of lines in one run on a GPU, in pixels with padding; it determines the memory of a run.",
        "pixels",
        between=(48 * 320, 10**9),
    )
    batch_wait_s: float = setting(0.002, "Longest wait of a line on a GPU for others of its batch.", between=(0, 10))
    model_cache: Path | None = setting(
        None, "Folder for ppocr's optimised models, which later starts load; by default in the user's cache folder."
    )


class TrEngineSettings(SettingsGroup, title="Engine tr"):
    """Settings of tr: its files, and how requests share its sessions."""

    tr_home: Path | None = setting(None, "Folder with libtr.so, ctpn.bin and crnn.bin, for the engine tr.")
    tr_shared_sessions: bool = setting(
        False, "Let all engine threads of a worker share one pair of Tr sessions instead of one pair each."
    )


class RemoteEngineSettings(SettingsGroup, title="Engine remote"):
    """Settings of remote: the servers, their model, and the local engine, which finds lines or replaces the model."""

    remote_url: Names = setting(
        (),
        "Servers with an OpenAI-compatible API that run the model, such as http://gpu1:8000/v1; of several, the one "
        "with the fewest pages gets the next.",
        accepted="URLs, separated by commas (in the file a list of texts)",
    )
    remote_model: str = setting("", "Name of the model, as its servers know it.")
    # Secret, so it is excluded when settings are passed to other processes.
    remote_key: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None, "API key of the servers, sent as a bearer token and never shown.", accepted="text"
    )
    remote_prompt: Literal["markdown", "paddleocr_vl", "glm_ocr", "olmocr", "deepseek_ocr"] = setting(
        "markdown", "Prompt and image size that the model was trained with; markdown is for other models."
    )
    remote_mode: Literal["page", "lines"] = setting(
        "page",
        "Use of the model's text: page answers with its Markdown; lines puts it into the lines that the local engine "
        "finds, so that boxes, words and confidences stay.",
    )
    remote_local: EngineName = setting(
        "ppocr",
        "Engine in this process that reads pages when the model does not, and that finds the lines.",
        accepted=lambda: "one of " + ", ".join(name for name in engines() if name != "remote"),
    )
    remote_concurrency: int = setting(16, "Pages that a worker sends to the servers at a time.", between=(1, 512))
    remote_timeout_s: float = setting(
        60.0,
        "Time for the model to read a page, retries included, and at most half of the time until the page's deadline; "
        "then the local engine reads it.",
        between=(0.1, 3600),
    )
    remote_max_tokens: int = setting(8192, "Longest text of a page.", "tokens", between=(16, 131072))


class IsolationSettings(SettingsGroup, title="Isolation"):
    """Settings of engines in child processes, and of the crash denylist."""

    isolation: Literal["auto", "thread", "process"] = setting(
        "auto",
        "Where the engine runs: in the worker's threads, or in a child process per thread, so that a crash loses only "
        "that child. auto is process, on Linux, for engines whose calls cannot be interrupted: tr (without "
        "OCRSVC_TR_SHARED_SESSIONS), tr_crnn, tesseract; and thread for all others.",
    )
    child_max_images: int = setting(
        0,
        "Images after which an engine's child process is replaced (its successor starts first); 0 is never.",
        "images",
        between=(0, 10**9),
    )
    child_memory_bytes: ByteCount | None = setting(
        None,
        "Private memory at which an engine's child process is replaced (its successor starts first); 0 is no limit; by "
        "default all children and one successor may fill 80 % of the machine's or container's memory.",
        between=(0, 2**50),
    )
    child_gpu_bytes: MemoryAmount | None = setting(
        None,
        "GPU memory at which an engine's child process is replaced (its successor starts first), if NVML reports "
        "memory per process; 0 is no limit, a percentage is of the GPU; by default all children on one GPU and one "
        "successor may fill 80 % of it.",
    )
    crash_denylist_size: int = setting(
        256,
        "Size of the crash denylists: of images that crashed the engine's child process twice, and of request bodies "
        "that stopped a worker; read at the start only.",
        "images",
        between=(1, 65536),
    )
    crash_denylist_s: PositiveFloat = setting(
        3600.0, "How long such an image or body is answered 422 without a try; read at the start only.", le=10**9
    )


class FakeEngineSettings(SettingsGroup, title="Engine fake, for tests"):
    """The fake engine's times, faults and memory."""

    fake_latency_s: float = setting(0.0, "How long the fake engine sleeps per image.", between=(0, 3600))
    fake_burn_s: float = setting(0.0, "How long the fake engine keeps a core busy per image.", between=(0, 3600))
    fake_leak_bytes: ByteCount = setting(0, "Memory that the fake engine leaks per image.", between=(0, 2**40))
    fake_fault: Literal["none", "fail", "hang", "crash", "abort", "segfault", "nonsense"] = setting(
        "none",
        "What the fake engine does wrong: fail the image, never return, end its process (by SIGKILL, SIGABRT or "
        "SIGSEGV), or return an impossible page.",
    )
    fake_fault_on: Names = setting((), "Texts of the images for which it does so, as it reads them; empty is all.")
    fake_warm_up_s: float = setting(0.0, "How long the fake engine takes to warm up.", between=(0, 3600))
    fake_model_bytes: ByteCount = setting(0, "Memory that the fake engine holds while it is open.", between=(0, 2**40))
    fake_text: str = setting("", "A line that the fake engine reads on every image, after the others.")
    fake_confidence: float = setting(1.0, "The confidence of that line.", between=(0, 1))
