"""The registry: one entry for each engine and each API adapter, from which every list of them derives.

Imports none of them: an entry names what to import, as "module:attribute", and `resolve` imports it when it is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine.

    Attributes:
        name: As OCRSVC_ENGINE has it.
        opener: A function of the settings and the thread plan, which returns an Engine.
        preload: Modules that a fork server imports before it forks children; without ONNX Runtime, which starts a
            thread when it is imported, and which a child imports in 50 ms.
        uses_onnx_runtime: Whether the GPU build of ONNX Runtime lets it compute on a GPU.
    """

    name: str
    opener: str
    preload: tuple[str, ...]
    uses_onnx_runtime: bool = False


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """One wire format.

    Attributes:
        name: As OCRSVC_DIALECTS has it; also that of its Flask blueprint.
        port: At which its clients look for a server over HTTP; None where they are given an address.
        http: A function of an AdapterContext, which returns the blueprint.
        grpc: A GrpcService; None where its clients do not speak gRPC.
        members: Of a JSON object, or fields of a form: a request that has one is meant for this adapter where several
            have the same path.
        slow_paths: Beginnings of paths that may take time without using the engine, as downloads do.
        stores_documents: Whether it takes in documents that are read while nobody waits.
    """

    name: str
    port: int | None
    http: str
    grpc: str | None = None
    members: tuple[str, ...] = ()
    slow_paths: tuple[str, ...] = ()
    stores_documents: bool = False


_PPOCR_MODULES: Final = (
    "cv2",
    "onnx",
    "onnx.numpy_helper",
    "ocrsvc.engines.ppocr.pipeline.db_postprocess",
    "ocrsvc.engines.ppocr.pipeline.page",
)

_ENGINES: Final = (
    EngineEntry("ppocr", "ocrsvc.engines.ppocr.engine:open_ppocr", _PPOCR_MODULES, uses_onnx_runtime=True),
    EngineEntry("tr", "ocrsvc.engines.tr.engine:open_tr", ("cv2", "ocrsvc.engines.tr.engine")),
    EngineEntry("tr_crnn", "ocrsvc.engines.tr_crnn.engine:open_tr_crnn", _PPOCR_MODULES, uses_onnx_runtime=True),
    EngineEntry("fake", "ocrsvc.engines.fake:open_fake", ("ocrsvc.engines.fake",)),
)

_ADAPTERS: Final = (
    AdapterEntry("trwebocr", 8089, "ocrsvc.adapters.trwebocr.http:make_trwebocr"),
    AdapterEntry("trwebocr_cpp", 6006, "ocrsvc.adapters.trwebocr_cpp.http:make_trwebocr_cpp"),
    AdapterEntry(
        "kserve_v2",
        8000,
        "ocrsvc.adapters.kserve.v2_http:make_kserve_v2",
        "ocrsvc.adapters.kserve.v2_grpc:GRPC_SERVICE",
    ),
    AdapterEntry(
        "tfserving",
        8501,
        "ocrsvc.adapters.tfserving.http:make_tfserving",
        "ocrsvc.adapters.tfserving.grpc:GRPC_SERVICE",
    ),
    AdapterEntry("kserve_v1", 8080, "ocrsvc.adapters.kserve.v1_http:make_kserve_v1"),
    AdapterEntry(
        "rapidocr_api",
        9003,
        "ocrsvc.adapters.rapidocr_api.http:make_rapidocr_api",
        members=("image_file", "image_data"),
    ),
    AdapterEntry("paddlex", 8080, "ocrsvc.adapters.paddlex.http:make_paddlex", members=("file",)),
    AdapterEntry("paddlehub", 8868, "ocrsvc.adapters.paddlehub.http:make_paddlehub"),
    AdapterEntry(
        "paddle_serving",
        9998,
        "ocrsvc.adapters.paddle_serving.http:make_paddle_serving",
        grpc="ocrsvc.adapters.paddle_serving.grpc:GRPC_SERVICE",
    ),
    AdapterEntry(
        "umi_ocr",
        1224,
        "ocrsvc.adapters.umi_ocr.http:make_umi_ocr",
        slow_paths=("/api/doc/",),
        stores_documents=True,
    ),
    AdapterEntry("ocr_space", None, "ocrsvc.adapters.ocr_space.http:make_ocr_space"),
    AdapterEntry("turboocr", 8000, "ocrsvc.adapters.turboocr.http:make_turboocr", members=("image",)),
)

ENGINES: Final[Mapping[str, EngineEntry]] = MappingProxyType({entry.name: entry for entry in _ENGINES})
"""By name."""

ADAPTERS: Final[Mapping[str, AdapterEntry]] = MappingProxyType({entry.name: entry for entry in _ADAPTERS})
"""By name, in the order in which they are listed to people."""


USUAL_PORTS: Final[Mapping[str, int | None]] = MappingProxyType({name: entry.port for name, entry in ADAPTERS.items()})
"""The HTTP port at which each adapter's clients look for a server, by name."""


def resolve(target: str) -> Any:
    """What "module:attribute" names; imports the module."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def adapters_at(port: int) -> frozenset[str]:
    """The names of the adapters whose clients come to this port."""
    return frozenset(name for name, entry in ADAPTERS.items() if entry.port == port)
