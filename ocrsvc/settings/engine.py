"""Settings of engines: which one reads and where it computes, those of each engine, and their child processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, PositiveFloat, ValidationInfo

from ocrsvc.plugins import engines
from ocrsvc.settings.group import ByteCount, MemoryAmount, Names, SettingsGroup, setting

_GPU: Final = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,80}")
_CONTRADICTIONS: Final = (("cpu", "cuda"), ("cpu", "tensorrt"), ("cuda", "cpu"), ("cuda", "openvino"))


def _check_gpus(names: tuple[str, ...]) -> tuple[str, ...]:
    if names != ("all",) and not all(_GPU.fullmatch(name) for name in names):
        raise ValueError("no names of GPUs")
    return tuple(dict.fromkeys(names))


def _check_engine(name: str) -> str:
    if name not in engines():
        raise ValueError("no such engine")
    return name


def _check_provider(name: str, info: ValidationInfo) -> str:
    if (info.data.get("device"), name) in _CONTRADICTIONS:
        raise ValueError("the device is another")
    return name


EngineName = Annotated[str, AfterValidator(_check_engine)]
Gpus = Annotated[Names, AfterValidator(_check_gpus)]
Provider = Annotated[Literal["auto", "cpu", "openvino", "cuda", "tensorrt"], AfterValidator(_check_provider)]


class EngineSettings(SettingsGroup, title="Engine"):
    """The engine and its device."""

    engine: EngineName = setting(
        "ppocr", "The engine that reads the pages.", accepted=lambda: "one of " + ", ".join(engines())
    )
    device: Literal["cpu", "cuda", "auto"] = setting(
        "auto", "Where the engine computes; cuda refuses to start without a usable GPU, auto takes one if there is one."
    )
    gpus: Gpus = setting(
        (),
        "GPUs that the workers are spread over, by nvidia-smi's numbers or UUIDs (also of MIG parts), or all; by "
        "default what CUDA_VISIBLE_DEVICES shows, and without it all.",
        accepted="all, or numbers and UUIDs (GPU-…, MIG-…) of GPUs, separated by commas (in the file a list of texts)",
    )


class PpocrEngineSettings(SettingsGroup, title="Engine ppocr"):
    """How ppocr computes. `provider` is checked against `device`, so EngineSettings come first."""

    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] = setting(
        "auto",
        "How ppocr computes: fp16 wants a GPU, bf16 OpenVINO and a CPU that has it, int8 (the recognizer) a CPU; auto "
        "takes on a CPU what is proved there, at the first start, to read the same and to be quickest.",
    )
    provider: Provider = setting(
        "auto",
        "What ppocr computes with: cpu, cuda and tensorrt in ONNX Runtime, or openvino; auto is cuda where the device "
        "allows it, else what OCRSVC_PRECISION says. What is named and does not work stops the start.",
        accepted="one of auto, cpu, openvino, cuda, tensorrt, and none that contradicts the device",
    )
    imaging: Literal["auto", "cpu"] = setting(
        "auto",
        "Where ppocr prepares pixels for models on a GPU: auto is the GPU, where cupy is installed and reads what the "
        "CPU reads.",
    )
    gpu_streams: int = setting(
        2,
        "Runs of one model that each worker has under way on a GPU at once; each has a session and memory of its own.",
        "streams",
        between=(1, 8),
    )
    gpu_arena_bytes: ByteCount | None = setting(
        None,
        "Memory of the GPU that the arena of each session may take; by default no limit but the GPU.",
        between=(64 * 2**20, 2**40),
    )
    batch_pixels: int = setting(
        32 * 48 * 320,
        "Largest batch of lines that a GPU reads in one run, in pixels with padding; the memory of a run follows it.",
        "pixels",
        between=(48 * 320, 10**9),
    )
    batch_wait_s: float = setting(
        0.002, "Longest time that a line waits on a GPU for others to be read with it.", between=(0, 10)
    )
    model_cache: Path | None = setting(
        None,
        "Folder that keeps optimised models for the next start, for the engine ppocr; by default ocrsvc in the user's "
        "cache folder.",
    )


class TrEngineSettings(SettingsGroup, title="Engine tr"):
    """Where tr is, and how its sessions are shared."""

    tr_home: Path | None = setting(None, "Folder with libtr.so, ctpn.bin and crnn.bin, for the engine tr.")
    tr_shared_sessions: bool = setting(
        False, "Let all engine threads of a worker share one pair of Tr sessions instead of one pair each."
    )


class IsolationSettings(SettingsGroup, title="Isolation"):
    """The engine's child processes and the crash denylist."""

    isolation: Literal["thread", "process"] = setting(
        "thread",
        "Where the engine runs: in the worker's threads, or in a child process for each, so that a crash loses nothing "
        "but that child.",
    )
    child_max_images: int = setting(
        0,
        "Images after which an engine's child process is replaced, its successor first; 0 is never.",
        "images",
        between=(0, 10**9),
    )
    child_memory_bytes: ByteCount | None = setting(
        None,
        "Memory of its own at which an engine's child process is replaced, its successor first; 0 is no limit; by "
        "default such that all children and one successor fill 80 % of the machine's or container's memory.",
        between=(0, 2**50),
    )
    child_gpu_bytes: MemoryAmount | None = setting(
        None,
        "Memory of the GPU at which an engine's child process is replaced, its successor first, where NVML tells what "
        "each process holds; 0 is no limit, a share is of the GPU; by default such that all children on one GPU and "
        "one successor would fill 80 % of it.",
    )
    quarantine_size: int = setting(
        256,
        "Most images remembered that killed the engine's child process twice, and as many bodies of requests that "
        "stopped a worker; read at the start only.",
        "images",
        between=(1, 65536),
    )
    quarantine_s: PositiveFloat = setting(
        3600.0, "How long such an image or body is answered 422 without being tried; read at the start only.", le=10**9
    )


class FakeEngineSettings(SettingsGroup, title="Engine fake, for tests"):
    """How long the fake engine takes, and what it does wrong."""

    fake_latency_s: float = setting(0.0, "How long the fake engine waits over an image.", between=(0, 3600))
    fake_burn_s: float = setting(0.0, "How long the fake engine keeps a core busy over an image.", between=(0, 3600))
    fake_leak_bytes: ByteCount = setting(0, "Memory that the fake engine keeps for ever per image.", between=(0, 2**40))
    fake_fault: Literal["none", "fail", "hang", "crash", "abort", "segfault", "nonsense"] = setting(
        "none",
        "What the fake engine does wrong: fail the image, never return, end its process (by SIGKILL, SIGABRT or "
        "SIGSEGV), or answer what no page can be.",
    )
    fake_fault_on: Names = setting(
        (), "Texts of the images, as the fake engine reads them, that its misbehaviour is for; none named is all."
    )
    fake_warm_up_s: float = setting(0.0, "How long the fake engine takes to warm up.", between=(0, 3600))
    fake_model_bytes: ByteCount = setting(0, "Memory that the fake engine holds while it is open.", between=(0, 2**40))
    fake_text: str = setting("", "A line that the fake engine reads on every image, after the others.")
    fake_confidence: float = setting(1.0, "How sure the fake engine is of that line.", between=(0, 1))
