"""What a verdict on a version depends on besides its files, and which verdicts hold no more.

What was accepted stays accepted: after an upgrade of the service, models that have served go on serving. What was
refused is tried again when the machine's processor or the programs change, because it may have been their fault. But a
file that is not that of its manifest, a reference page that is missing, and what live traffic has shown are the same
everywhere.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc import __version__
from ocrsvc.model_serving.state import ModelState, Verdict
from ocrsvc.settings.settings import Settings

_PROGRAMS: Final = ("onnxruntime", "onnxruntime-gpu", "openvino", "numpy", "opencv-python-headless", "rapidocr")
_EVERYWHERE: Final = frozenset({"files", "reference", "live"})
_PROCESSORS: Final = Path("/proc/cpuinfo")


def basis_of(settings: Settings, processors: Path = _PROCESSORS) -> str:
    """Names the processor, the programs, and the settings that models are computed with."""
    parts = [__version__, platform.machine(), _processor(processors)]
    parts += [settings.device, settings.provider, settings.precision, str(settings.models_code)]
    parts += [f"{name} {version}" for name in _PROGRAMS if (version := _version_of(name))]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def outdated_verdicts(state: ModelState, basis: str) -> list[str]:
    """The digests of the versions that are to be tried again."""
    return [digest for digest, verdict in state.verdicts.items() if not _holds(verdict, basis)]


def without_verdicts(state: ModelState, digests: Iterable[str]) -> ModelState:
    """The state as if these versions had not been proved."""
    gone = frozenset(digests)
    kept = {digest: verdict for digest, verdict in state.verdicts.items() if digest not in gone}
    return state.model_copy(update={"verdicts": kept})


def _holds(verdict: Verdict, basis: str) -> bool:
    return verdict.accepted or verdict.kind in _EVERYWHERE or verdict.made_on == basis


def _processor(processors: Path) -> str:
    try:
        lines = processors.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
