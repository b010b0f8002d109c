"""The registry of engines, line recognizers, adapters and output formats, which are built in or come from plug-ins.

Installed packages add entries by entry points in the groups `ocrsvc.engines`, `ocrsvc.recognizers`, `ocrsvc.adapters`
and `ocrsvc.formats`, loaded on first use. An entry names its code as "module:attribute", which `resolve` imports when
it is needed. Entry points are loaded in gunicorn's arbiter, so their modules must not import Flask or a numeric
library.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final, TypeVar

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Names that plug-ins may not have: metrics and OCRSVC_ADAPTERS use them for the service's own routes and "none"; the
# last three are output formats of the native API.
_RESERVED: Final = frozenset({"api", "none", "operators", "ops", "page", "json", "ndjson", "sse"})


class EntryError(Exception):
    """An entry of the registry, or the code that it names, cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """A registered engine. A target is a text "module:attribute", which `resolve` imports.

    Attributes:
        opener: Target of a function that takes the settings and the thread plan and returns an Engine.
        preload: Modules that the fork server imports before forking. Not ONNX Runtime, whose import starts a thread; a
            child imports it in 50 ms.
        uses_onnx_runtime: Whether the engine can use a GPU through the GPU build of ONNX Runtime.
        settings: Target of a plug-in's SettingsGroup, which `settings_class` adds to `Settings`; empty for none.
        base_groups: Targets of the engine's SettingsGroups that are base classes of `Settings`. A model version may
            override the settings in `settings` and `base_groups`.
        takes_model: Whether the opener takes a third argument: a ModelVersion, or None for the engine's own model.
        runs_model_code: Whether the engine executes code from its models, such as a library.
        concurrency: The setting with the number of pages that a worker reads at a time, for an engine that waits for
            other machines; empty for engines that compute, whose number follows from the CPUs.
        languages: Tags of the languages that the engine's own model reads.
        is_interruptible: Whether the engine stops soon after a deadline. If not, OCRSVC_ISOLATION=auto runs it in child
            processes, which can be ended.
        in_process_setting: The setting that, if true, keeps such an engine in the worker's process with
            OCRSVC_ISOLATION=auto, because its handles share something that child processes cannot; empty for none.
        extra: The extra of ocrsvc that installs what a built-in engine imports; empty if no extra does.
        package: Name and version of the plug-in's package, filled in on loading; empty for a built-in engine.
    """

    name: str
    opener: str
    preload: tuple[str, ...] = ()
    uses_onnx_runtime: bool = False
    settings: str = ""
    base_groups: tuple[str, ...] = ()
    takes_model: bool = False
    runs_model_code: bool = False
    concurrency: str = ""
    languages: tuple[str, ...] = ()
    is_interruptible: bool = True
    in_process_setting: str = ""
    extra: str = ""
    package: str = ""


@dataclass(frozen=True, slots=True)
class RecognizerEntry:
    """A registered line recognizer; an engine of the same name reads its lines behind ppocr's detector.

    Attributes:
        opener: Target of a function that takes the settings and a ModelVersion (None for the recognizer's own model)
            and returns a LineRecognizer (`ocrsvc.engines.line_recognizer`).
        preload, settings, languages, is_interruptible, package: As in EngineEntry.
    """

    name: str
    opener: str
    preload: tuple[str, ...] = ()
    settings: str = ""
    languages: tuple[str, ...] = ()
    is_interruptible: bool = True
    package: str = ""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A registered adapter (wire format); `settings` and `package` are as in EngineEntry.

    Attributes:
        name: The adapter's name in OCRSVC_ADAPTERS, and the name of its Flask blueprint.
        port: The usual HTTP port of servers with this wire format; None if there is none.
        http: Target of a function that takes an AdapterContext and returns the blueprint.
        grpc: Target of a GrpcService; None without gRPC.
        members: JSON members or form fields that identify a request for this adapter if adapters share a path.
        takes_forms: If adapters share a path, this one gets requests with a form or an image as body.
        yields_paths: If adapters share a path and nothing in the request tells which is meant, another one gets it.
        stores_documents: Whether the adapter accepts documents to be read as jobs.
        job_answer: Target of a function of a Job, an output and a Check that writes the answer for a finished job. It
            is called once, after the last page. Empty if there is no such answer.
        health_paths: Full paths, and gRPC methods, of the format's health checks. They need no API key and run on the
            threads reserved for quick requests.
        job_paths: Path prefixes of job routes, for which API keys need the scope `jobs`.
        operate_paths: Path prefixes that load and unload models; with a model repository keys need the scope `operate`.
        credentials: Target of a function of a KeyRequest (`ocrsvc.access.api_keys`) that returns the API key in the
            format's own place, or "". `Authorization` (Bearer, token, Basic) and `X-API-Key` come first. Empty: none.
        key_body_paths: Full paths at which `credentials` may find the key in a form field of the body.
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
    credentials: str = ""
    key_body_paths: tuple[str, ...] = ()
    settings: str = ""
    package: str = ""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A registered output format other than JSON.

    Attributes:
        name: The format's value in the option `format`.
        media_type: The Content-Type of its answers, matched with a client's Accept header.
        suffix: The file name extension.
        label: The format's name on the web page.
        help: A short description.
        text: Target of a function of pages, their number and an EngineInfo that yields the text page by page. Empty for
            a binary format.
        writer: Target of a binary format's `Writer` (`ocrsvc.formats.document`); empty for a text format.
        needs: Read options that this format turns on, whatever the request says.
        package: As in EngineEntry.
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


_Entry = TypeVar("_Entry", EngineEntry, RecognizerEntry, AdapterEntry, OutputFormat)

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
        extra="cpu",
    ),
    EngineEntry(
        "tr",
        "ocrsvc.engines.tr.engine:open_tr",
        ("cv2", "ocrsvc.engines.tr.engine"),
        base_groups=("ocrsvc.settings.engine:TrEngineSettings",),
        runs_model_code=True,
        languages=("zh", "en"),
        is_interruptible=False,
        in_process_setting="tr_shared_sessions",
    ),
    EngineEntry(
        "remote", "ocrsvc.engines.remote.engine:RemoteEngine", concurrency="remote_concurrency", extra="remote"
    ),
    EngineEntry(
        "fake",
        "ocrsvc.engines.fake:FakeEngine",
        ("ocrsvc.engines.fake",),
        base_groups=("ocrsvc.settings.engine:FakeEngineSettings",),
    ),
)

# `tr_crnn` (Tr 2.8) is not interruptible, because one line may take 15 s.
_RECOGNIZERS: Final = (
    RecognizerEntry("ppocr", "ocrsvc.engines.ppocr.line_recognizer:open_ppocr_recognizer"),
    RecognizerEntry(
        "tr_crnn",
        "ocrsvc.engines.tr_crnn.recognizer:open_tr_crnn",
        languages=("zh", "en"),
        is_interruptible=False,
    ),
    RecognizerEntry("tesseract", "ocrsvc.engines.tesseract.recognizer:open_tesseract", is_interruptible=False),
)


def _adapter(name: str, port: int | None, *, grpc: bool = False, own_key: bool = False, **more: Any) -> AdapterEntry:
    """The entry of a built-in adapter; its package has GRPC_SERVICE if `grpc`, and `credentials` if `own_key`."""
    package = f"ocrsvc.adapters.{name}"
    service = f"{package}.grpc:GRPC_SERVICE" if grpc else None
    credentials = f"{package}.http:credentials" if own_key else ""
    return AdapterEntry(name, port, f"{package}.http:make_{name}", service, credentials=credentials, **more)


_ADAPTERS: Final = (
    _adapter("trwebocr", 8089),
    AdapterEntry("trwebocr_cpp", 6006, "ocrsvc.adapters.trwebocr.http:make_trwebocr_cpp"),
    AdapterEntry(
        "kserve_v2",
        8000,
        "ocrsvc.adapters.kserve.v2_http:make_kserve_v2",
        "ocrsvc.adapters.kserve.v2_grpc:GRPC_SERVICE",
        # The health API of the Open Inference Protocol, for the server and the model.
        health_paths=(
            *("/v2/health/live", "/v2/health/ready", "/v2/models/ocr/ready", "/v2/models/ocr/versions/1/ready"),
            *(f"/inference.GRPCInferenceService/{name}" for name in ("ServerLive", "ServerReady", "ModelReady")),
        ),
        operate_paths=("/v2/repository/models/",),
    ),
    _adapter("tfserving", 8501, grpc=True),
    AdapterEntry("kserve_v1", 8080, "ocrsvc.adapters.tfserving.http:make_kserve_v1"),
    _adapter("rapidocr_api", 9003, members=("image_file", "image_data"), takes_forms=True),
    # The health check of PaddleX Serving.
    _adapter("paddlex", 8080, members=("file",), health_paths=("/health",)),
    _adapter("paddlehub", 8868),
    _adapter("paddle_serving", 9998, grpc=True),
    _adapter("umi_ocr", 1224, stores_documents=True, job_paths=("/api/doc/",)),
    _adapter("ocr_space", None, own_key=True, key_body_paths=("/parse/image", "/Parse/Image")),
    _adapter(
        "docling",
        5001,
        yields_paths=True,
        stores_documents=True,
        job_answer="ocrsvc.adapters.docling.contents:write_job_answer",
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
        # TurboOCR's health, liveness and readiness checks.
        health_paths=("/health", "/health/live", "/health/ready", "/ocr.OCRService/Health"),
    ),
    _adapter("mineru", 8000),
    _adapter("open_webui", None),
    # Mistral's API shares its path with the native API, whose requests never have the member "document".
    _adapter("mistral", None, members=("document",), stores_documents=True),
    _adapter(
        "azure_read",
        None,
        stores_documents=True,
        job_answer="ocrsvc.adapters.azure_read.analyze_result:write_result",
        job_paths=("/documentintelligence/", "/formrecognizer/"),
        own_key=True,
    ),
    _adapter("google_vision", None, own_key=True),
    _adapter("textract", None, own_key=True),
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
        "the original pages with searchable, selectable text",
        writer="ocrsvc.formats.pdf.searchable:write_searchable_pdf",
        # Without word boxes a search in the PDF would highlight the wrong part of a line.
        needs=("words",),
    ),
)


@cache
def engines() -> Mapping[str, EngineEntry]:
    """All engines by name, plug-ins last, including one per line recognizer. Raises EntryError."""
    own = {entry.name for entry in _ENGINES}
    made = [_engine_of(entry) for entry in recognizers().values() if entry.name not in own or entry.package]
    if taken := own.intersection(entry.name for entry in made):
        raise EntryError(f"A plug-in adds the line recognizer {min(taken)}, which has the name of an engine.")
    return with_plugins((*_ENGINES, *made), entry_points(group="ocrsvc.engines"), EngineEntry)


@cache
def recognizers() -> Mapping[str, RecognizerEntry]:
    """All line recognizers by name, plug-ins last. Raises EntryError."""
    return with_plugins(_RECOGNIZERS, entry_points(group="ocrsvc.recognizers"), RecognizerEntry)


def _engine_of(entry: RecognizerEntry) -> EngineEntry:
    return EngineEntry(
        entry.name,
        "ocrsvc.engines.line_engine:open_line_engine",
        (*_PPOCR_MODULES, *entry.preload),
        uses_onnx_runtime=True,
        settings=entry.settings,
        takes_model=True,
        languages=entry.languages,
        is_interruptible=entry.is_interruptible,
        extra="cpu",
        package=entry.package,
    )


@cache
def adapters() -> Mapping[str, AdapterEntry]:
    """All adapters by name, in display order, plug-ins last. Raises EntryError."""
    return with_plugins(_ADAPTERS, entry_points(group="ocrsvc.adapters"), AdapterEntry)


@cache
def output_formats() -> Mapping[str, OutputFormat]:
    """All output formats except JSON by name, in display order. Raises EntryError."""
    return with_plugins(_FORMATS, entry_points(group="ocrsvc.formats"), OutputFormat)


def text_formats() -> Mapping[str, OutputFormat]:
    """The output formats that are text, by name. Raises EntryError."""
    return {name: form for name, form in output_formats().items() if form.text}


def needs_of(formats: Iterable[str]) -> dict[str, bool]:
    """The read options that output formats need, each with the value True; unknown formats are ignored."""
    return {need: True for name in formats if name in output_formats() for need in output_formats()[name].needs}


def with_plugins(built_in: Iterable[_Entry], points: Iterable[EntryPoint], kind: type[_Entry]) -> Mapping[str, _Entry]:
    """Built-in entries and entries loaded from entry points, by name.

    Raises EntryError if a plug-in cannot be loaded, is not an entry of this kind, or has an invalid or taken name.
    """
    entries = {entry.name: entry for entry in built_in}
    for point in sorted(points, key=lambda point: point.name):
        entry = _load(point, kind)
        if entry.name in entries or entry.name in _RESERVED or not _NAME.fullmatch(entry.name):
            raise EntryError(f"{_described(point)} has the name {entry.name!r}, which is taken or invalid.")
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
    """Import a target "module:attribute", and return the attribute. Raises EntryError."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise EntryError(f"{target} needs the package {error.name}, which is not installed.") from error
    except Exception as error:
        raise EntryError(f"{target} cannot be loaded: {type(error).__name__}: {error}.") from error
