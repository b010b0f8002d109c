"""What a verdict on a version depends on besides its files, and which verdicts hold no more.

What was accepted stays accepted: after an upgrade of the service, models that have served go on serving. What was
refused is tried again when the machine's processor or the programs change, because it may have been their fault. But a
file that is not that of its manifest, a reference page that is missing, and what live traffic has shown are the same
everywhere. What is refused for its files is tried again when these were written again, and what could not be listed as
soon as it can be: its description was mended, or its key is there.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc import __version__
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.proof.reference_pages import FOLDER
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


def mended(versions: Iterable[ModelVersion], state: ModelState) -> frozenset[str]:
    """The digests of the versions that are refused for files that are others now, or for not being listed."""
    refused = ((version, state.verdicts.get(version.digest)) for version in versions)
    return frozenset(
        version.digest for version, verdict in refused if verdict is not None and _is_mended(version, verdict)
    )


def written_ns(version: ModelVersion, kind: str) -> int:
    """When what a version was refused for was written last; a copy that keeps the times of the original counts as well.

    Args:
        version: Whose files count.
        kind: What it is refused for: for `reference`, the pages beside it, which the operator keeps, count as well.
    """
    files = [version.folder / file for file in version.digests]
    if kind == "reference":
        for model in (version.folder.parent, version.folder.parent.parent):
            files += [model / FOLDER, *(model / FOLDER).glob("*")]
    return max(map(_changed_ns, files), default=0)


def _is_mended(version: ModelVersion, verdict: Verdict) -> bool:
    if verdict.accepted:
        return False
    return verdict.was_unreadable or (
        bool(verdict.written_ns) and verdict.written_ns != written_ns(version, verdict.kind)
    )


def _changed_ns(file: Path) -> int:
    try:
        return file.stat().st_ctime_ns
    except OSError:
        return 0


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
