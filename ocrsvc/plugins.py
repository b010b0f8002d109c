"""Engines, adapters and output formats: one entry each, from which every list of them derives.

Installed packages add entries by the entry points `ocrsvc.engines`, `ocrsvc.adapters` and `ocrsvc.formats`, which are
read when the entries are first asked for. Nothing that is listed here is imported: an entry names what to import, as
"module:attribute", and `resolve` imports it when it is wanted. What an entry point names is imported in gunicorn's
arbiter, so its module loads neither Flask nor a numeric library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final, TypeVar

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
# What metrics and OCRSVC_DIALECTS call the service's own addresses, and none.
# The last three are formats that the native API writes itself.
_RESERVED: Final = frozenset({"api", "none", "operators", "ops", "page", "json", "ndjson", "sse"})


class EntryError(Exception):
    """An entry, or what it names, cannot be used; the sentence says which and why."""


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine.

    Attributes:
        opener: A function of the settings and the thread plan, which returns an Engine.
        takes_model: The opener takes a third argument: the ModelVersion that it opens, or None for the one that the
            engine comes with.
        runs_model_code: A model of it holds programs that the engine runs, such as a library.
        preload: Modules that a fork server imports before it forks children; without ONNX Runtime, which starts a
            thread when it is imported, and which a child imports in 50 ms.
        uses_onnx_runtime: Whether the GPU build of ONNX Runtime lets it compute on a GPU.
        settings: A SettingsGroup, unless it is among the bases of `ocrsvc.settings.settings.Settings`.
        base_groups: SettingsGroups that are among those bases. The engine's own settings, which a model may set, are
            those of `settings` and of these.
        package: Name and version of the package that it came from, which is filled in here; empty for this one.
    """

    name: str
    opener: str
    preload: tuple[str, ...] = ()
    uses_onnx_runtime: bool = False
    settings: str = ""
    base_groups: tuple[str, ...] = ()
    takes_model: bool = False
    runs_model_code: bool = False
    package: str = ""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """One wire format; settings and package are as of an EngineEntry.

    Attributes:
        name: As OCRSVC_DIALECTS has it; also that of its Flask blueprint.
        port: At which its clients look for a server over HTTP; None where they are given an address.
        http: A function of an AdapterContext, which returns the blueprint.
        grpc: A GrpcService; None where its clients do not speak gRPC.
        members: Of a JSON object, or fields of a form: a request that has one is meant for this adapter where several
            have the same path.
        takes_forms: Such a request is meant for it where several have the same path, as is an image as the body.
        yields_paths: Whether another adapter answers where nothing but the path tells them apart.
        stores_documents: Whether it takes in documents that are read while nobody waits.
        job_answer: A function of a Job, an output and a Check, which writes the answer about a document that was read.
            It is made once, when the last page was read. Empty where there is no such answer.
        health_paths: Whole paths, and gRPC methods, that the format defines for health checks: they are answered
            without a key, and by the threads that are reserved for what is quick.
        job_paths: Beginnings of the paths of documents that are read while nobody waits: they want the scope `jobs`.
        operate_paths: Beginnings of the paths by which models are loaded and unloaded where there is a repository: they
            want the scope `operate`, then.
        key_field: The header, the field of a form, and of a GET the query parameter in which the format's clients send
            an API key; empty where it has none, and only `Authorization` and `X-API-Key` are read.
        key_body_paths: Whole paths at which this field may be in the body.
    """

    name: str
    port: int | None
    http: str
    grpc: str | None = None
    members: tuple[str, ...] = ()
    takes_forms: bool = False
    yields_paths: bool = False
    stores_documents: bool = False
    job_answer: str = ""
    health_paths: tuple[str, ...] = ()
    job_paths: tuple[str, ...] = ()
    operate_paths: tuple[str, ...] = ()
    key_field: str = ""
    key_body_paths: tuple[str, ...] = ()
    settings: str = ""
    package: str = ""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """One output format beside JSON.

    Attributes:
        name: As the option `format` has it.
        media_type: The Content-Type of an answer, and what a client accepts that wants this format.
        suffix: The end of a file's name.
        label: Its name on the web page.
        help: What it is, in a few words.
        text: A function of pages, their number and an EngineInfo, which yields their text, a page at a time. Empty for
            a format that is not text.
        writer: Of a format that is not text, a `Writer` of `ocrsvc.formats.document`.
        needs: Read options that are on for this format, whatever a request says.
        package: As of an EngineEntry.
    """

    name: str
    media_type: str
    suffix: str
    label: str
    help: str
    text: str = ""
    writer: str = ""
    needs: tuple[str, ...] = ()
    package: str = ""


_Entry = TypeVar("_Entry", EngineEntry, AdapterEntry, OutputFormat)

_PPOCR_MODULES: Final = (
    "cv2",
    "onnx",
    "onnx.numpy_helper",
    "ocrsvc.engines.ppocr.pipeline.db_postprocess",
    "ocrsvc.engines.ppocr.pipeline.page",
)

_ENGINES: Final = (
    EngineEntry(
        "ppocr",
        "ocrsvc.engines.ppocr.engine:open_ppocr",
        _PPOCR_MODULES,
        uses_onnx_runtime=True,
        base_groups=("ocrsvc.settings.engine:PpocrEngineSettings",),
        takes_model=True,
    ),
    EngineEntry(
        "tr",
        "ocrsvc.engines.tr.engine:open_tr",
        ("cv2", "ocrsvc.engines.tr.engine"),
        base_groups=("ocrsvc.settings.engine:TrEngineSettings",),
        runs_model_code=True,
    ),
    EngineEntry("tr_crnn", "ocrsvc.engines.tr_crnn.engine:open_tr_crnn", _PPOCR_MODULES, uses_onnx_runtime=True),
    EngineEntry(
        "fake",
        "ocrsvc.engines.fake:FakeEngine",
        ("ocrsvc.engines.fake",),
        base_groups=("ocrsvc.settings.engine:FakeEngineSettings",),
    ),
)


def _adapter(name: str, port: int | None, *, grpc: bool = False, **more: Any) -> AdapterEntry:
    """One of ours, in the folder of its name; `grpc` if there is a service, too."""
    package = f"ocrsvc.adapters.{name}"
    service = f"{package}.grpc:GRPC_SERVICE" if grpc else None
    return AdapterEntry(name, port, f"{package}.http:make_{name}", service, **more)


_ADAPTERS: Final = (
    _adapter("trwebocr", 8089),
    AdapterEntry("trwebocr_cpp", 6006, "ocrsvc.adapters.trwebocr.http:make_trwebocr_cpp"),
    AdapterEntry(
        "kserve_v2",
        8000,
        "ocrsvc.adapters.kserve.v2_http:make_kserve_v2",
        "ocrsvc.adapters.kserve.v2_grpc:GRPC_SERVICE",
        # What the Open Inference Protocol calls its health API: of the server, and of the one model.
        health_paths=(
            *("/v2/health/live", "/v2/health/ready", "/v2/models/ocr/ready", "/v2/models/ocr/versions/1/ready"),
            *(f"/inference.GRPCInferenceService/{name}" for name in ("ServerLive", "ServerReady", "ModelReady")),
        ),
        operate_paths=("/v2/repository/models/",),
    ),
    _adapter("tfserving", 8501, grpc=True),
    AdapterEntry("kserve_v1", 8080, "ocrsvc.adapters.tfserving.http:make_kserve_v1"),
    _adapter("rapidocr_api", 9003, members=("image_file", "image_data"), takes_forms=True),
    # What PaddleX's serving has for probes.
    _adapter("paddlex", 8080, members=("file",), health_paths=("/health",)),
    _adapter("paddlehub", 8868),
    _adapter("paddle_serving", 9998, grpc=True),
    _adapter("umi_ocr", 1224, stores_documents=True, job_paths=("/api/doc/",)),
    _adapter("ocr_space", None, key_field="apikey", key_body_paths=("/parse/image", "/Parse/Image")),
    _adapter(
        "docling",
        5001,
        yields_paths=True,
        stores_documents=True,
        job_answer="ocrsvc.adapters.docling.contents:write_task_answer",
        health_paths=("/health",),
        job_paths=tuple(
            f"/{version}/{path}"
            for version in ("v1", "v1alpha")
            for path in ("convert/file/async", "convert/source/async", "status/", "result/")
        ),
    ),
    _adapter(
        "turboocr",
        8000,
        grpc=True,
        members=("image",),
        # TurboOCR's health, liveness and readiness.
        health_paths=("/health", "/health/live", "/health/ready", "/ocr.OCRService/Health"),
    ),
    # Its path is that of the native API, which knows no such member.
    _adapter("mistral", None, members=("document",), stores_documents=True),
    _adapter(
        "azure_read",
        None,
        stores_documents=True,
        job_answer="ocrsvc.adapters.azure_read.analyze_result:write_result",
        job_paths=("/documentintelligence/", "/formrecognizer/"),
        key_field="Ocp-Apim-Subscription-Key",
    ),
)

_FORMATS: Final = (
    OutputFormat(
        "text",
        "text/plain",
        ".txt",
        "Text",
        "plain text, a form feed between pages",
        "ocrsvc.formats.plain_text:text_parts",
    ),
    OutputFormat(
        "tsv", "text/tab-separated-values", ".tsv", "TSV", "Tesseract's columns", "ocrsvc.formats.plain_text:tsv_parts"
    ),
    OutputFormat("hocr", "text/vnd.hocr+html", ".hocr", "hOCR", "hOCR 1.2", "ocrsvc.formats.hocr_and_alto:hocr_parts"),
    OutputFormat(
        "alto", "application/alto+xml", ".alto.xml", "ALTO", "ALTO XML 4", "ocrsvc.formats.hocr_and_alto:alto_parts"
    ),
    OutputFormat(
        "md",
        "text/markdown",
        ".md",
        "Markdown",
        "headings, paragraphs, lists and tables as Markdown",
        "ocrsvc.formats.markdown:markdown_parts",
        needs=("tables",),
    ),
    OutputFormat(
        "pdf",
        "application/pdf",
        ".pdf",
        "Searchable PDF",
        "the pages as they are, with their text to be found and copied",
        writer="ocrsvc.formats.pdf.searchable:write_searchable_pdf",
        # Without the boxes of words a search would mark the wrong place.
        needs=("words",),
    ),
)


@cache
def engines() -> Mapping[str, EngineEntry]:
    """The engines by name, those of plug-ins last. Raises EntryError."""
    return with_plugins(_ENGINES, entry_points(group="ocrsvc.engines"), EngineEntry)


@cache
def adapters() -> Mapping[str, AdapterEntry]:
    """The adapters by name, as they are listed to people, those of plug-ins last. Raises EntryError."""
    return with_plugins(_ADAPTERS, entry_points(group="ocrsvc.adapters"), AdapterEntry)


@cache
def output_formats() -> Mapping[str, OutputFormat]:
    """The output formats beside JSON by name, in the order in which people see them. Raises EntryError."""
    return with_plugins(_FORMATS, entry_points(group="ocrsvc.formats"), OutputFormat)


def text_formats() -> Mapping[str, OutputFormat]:
    """Those that are text. Raises EntryError."""
    return {name: form for name, form in output_formats().items() if form.text}


def needs_of(formats: Iterable[str]) -> dict[str, bool]:
    """The read options that these formats need, all of them true; names of other formats are ignored."""
    return {need: True for name in formats if name in output_formats() for need in output_formats()[name].needs}


def with_plugins(built_in: Iterable[_Entry], points: Iterable[EntryPoint], kind: type[_Entry]) -> Mapping[str, _Entry]:
    """Entries by name, also those that entry points name.

    Raises EntryError where one cannot be loaded, is no entry, or has a name that is taken.
    """
    entries = {entry.name: entry for entry in built_in}
    for point in sorted(points, key=lambda point: point.name):
        entry = _load(point, kind)
        if entry.name in entries or entry.name in _RESERVED or not _NAME.fullmatch(entry.name):
            raise EntryError(f"{_described(point)} calls itself {entry.name!r}, which is taken or not a plain name.")
        entries[entry.name] = entry
    return MappingProxyType(entries)


def _load(point: EntryPoint, kind: type[_Entry]) -> _Entry:
    try:
        entry = point.load()
    except Exception as error:
        raise EntryError(f"{_described(point)} cannot be loaded: {type(error).__name__}: {error}.") from error
    if not isinstance(entry, kind):
        raise EntryError(f"{_described(point)} is not of the class {kind.__name__}.")
    return replace(entry, package=_package_of(point))


def _described(point: EntryPoint) -> str:
    return f"The plug-in {point.name} = {point.value} (entry point {point.group} of {_package_of(point)})"


def _package_of(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def resolve(target: str) -> Any:
    """What "module:attribute" names; imports the module. Raises EntryError."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise EntryError(f"{target} cannot be loaded: {type(error).__name__}: {error}.") from error
