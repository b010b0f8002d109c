"""Which knobs exist: each one's type, default, unit, bounds and help, declared once, and how they are read.

A value comes from the environment (`OCRSVC_WORKERS=4`), else from the TOML file that `OCRSVC_CONFIG` names
(`workers = 4`), else from the default. An empty variable counts as not set. Settings are read once, at the start.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo

from ocrsvc.errors import SettingsError
from ocrsvc.registry import USUAL_PORTS

PREFIX: Final = "OCRSVC_"
CONFIG_VARIABLE: Final = "OCRSVC_CONFIG"

Source = Literal["default", "file", "environment"]

_BYTE_UNITS: Final = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
_BIND: Final = re.compile(r"unix:\S+|(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):(\d{1,5})")
# In an address such as redis://user:secret@host.
_PASSWORD: Final = re.compile(r"(://[^/@\s:]*:)[^/@\s]*@")
_HOST: Final = re.compile(r"\*|[a-z0-9._-]{1,253}|[0-9a-f:.]{2,45}")
_ORIGIN: Final = re.compile(r"\*|https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?")
_GPU: Final = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,80}")
_FORMAT_MAX_PIXELS: Final = {
    "jpeg": 50_000_000,
    "png": 50_000_000,
    "bmp": 50_000_000,
    "pnm": 50_000_000,
    "tiff": 40_000_000,
    "webp": 30_000_000,
    "gif": 20_000_000,
    "pdf": 50_000_000,
}
# What is not told by the type alone.
_ACCEPTED: Final = {
    "bind": "host:port, [IPv6]:port or unix:path",
    "grpc_bind": "addresses separated by commas (in the file a list), each host:port, [IPv6]:port or unix:path",
    "dialects": "none, or names separated by commas (in the file a list) out of " + ", ".join(USUAL_PORTS),
    "usual_ports": "names of dialects that are on, separated by commas (in the file a list), out of "
    + ", ".join(name for name, port in USUAL_PORTS.items() if port)
    + "; and no unix: address in bind",
    "hosts": "names and addresses separated by commas (in the file a list), or *",
    "cors": "origins separated by commas (in the file a list), each scheme://host or scheme://host:port, or *",
    "gpus": "all, or numbers and UUIDs (GPU-…, MIG-…) of cards, separated by commas (in the file a list of texts)",
    "provider": "one of auto, cpu, cuda, tensorrt, and none that contradicts the device",
    "caller_header": "the name of a header, of letters, digits and hyphens",
    "format_max_pixels": "format=pixels, … (in the file a table) for " + ", ".join(_FORMAT_MAX_PIXELS),
}


def _parse_bytes(value: object) -> object:
    """Whole bytes of "64MiB", "1GB" or "4096"; anything else comes back as it is, for pydantic to refuse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        return value
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole that is known only where it is used."""

    percent: float

    def __str__(self) -> str:
        return f"{self.percent:g}%"


def _parse_amount(value: object) -> object:
    """A Share of "80%", above 0 and up to 100; else as `_parse_bytes`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", str(value).strip())
    if match is None:
        return _parse_bytes(value)
    return Share(float(match[1])) if 0 < float(match[1]) <= 100 else value


def bytes_of(amount: int | Share | None, whole_bytes: int) -> int | None:
    """Bytes of an amount of memory, given the whole that a share is of; None stays None."""
    return round(amount.percent / 100 * whole_bytes) if isinstance(amount, Share) else amount


def _check_bind(value: str) -> str:
    """The address itself, if gunicorn can listen on it; raises ValueError."""
    match = _BIND.fullmatch(value)
    if match is None or int(match[1] or 0) > 65535:
        raise ValueError("not an address")
    return value


def _check_header(value: str) -> str:
    """The name itself, if it is one of a header that WSGI can tell, or empty; raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9-]{0,64}", value):
        raise ValueError("not the name of a header")
    return value


def _split(value: object) -> object:
    """The parts of "a, b"; anything else as it is."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _check_dialects(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once; "none" alone is none. Raises ValueError for one that is not spoken."""
    if names == ("none",):
        return ()
    if unknown := set(names) - set(USUAL_PORTS):
        raise ValueError(f"unknown dialects {sorted(unknown)}")
    return tuple(dict.fromkeys(names))


def _check_usual_ports(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """The names, if each is spoken here and has a usual port, and `bind` has a host for it. Raises ValueError."""
    names = _check_dialects(names)
    portless = [name for name in names if USUAL_PORTS[name] is None or name not in info.data.get("dialects", names)]
    if portless or (names and str(info.data.get("bind", "")).startswith("unix:")):
        raise ValueError("no port can be bound for them")
    return names


def _check_provider(name: str, info: ValidationInfo) -> str:
    """The name, if the device allows it; raises ValueError."""
    if (info.data.get("device"), name) in (("cpu", "cuda"), ("cpu", "tensorrt"), ("cuda", "cpu")):
        raise ValueError("the device is another")
    return name


def _check_gpus(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once, if each can be one of a card, or `all` alone; raises ValueError."""
    if names != ("all",) and not all(_GPU.fullmatch(name) for name in names):
        raise ValueError("no names of cards")
    return tuple(dict.fromkeys(names))


def _check_hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in lower case, if each can be one of a host, or `*`; raises ValueError."""
    names = tuple(name.lower().strip("[]") for name in names)
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError("no names of hosts")
    return names


def _check_origins(names: tuple[str, ...]) -> tuple[str, ...]:
    """The origins, if each is a scheme, a host and perhaps a port, or `*`; raises ValueError."""
    if not all(_ORIGIN.fullmatch(name) for name in names):
        raise ValueError("no origins")
    return names


def _complete_formats(value: object) -> object:
    """Pixel limits of "gif=1000, webp=2000" or of a table, over the defaults of the formats left out."""
    if isinstance(value, str):
        value = {key.strip(): limit.strip() for key, _, limit in (part.partition("=") for part in value.split(","))}
    if not isinstance(value, Mapping):
        return value
    if unknown := set(value) - set(_FORMAT_MAX_PIXELS):
        raise ValueError(f"unknown formats {sorted(map(str, unknown))}")
    return _FORMAT_MAX_PIXELS | dict(value)


ByteCount = Annotated[int, BeforeValidator(_parse_bytes)]
MemoryAmount = Annotated[Annotated[int, Field(ge=0, le=2**50)] | InstanceOf[Share], BeforeValidator(_parse_amount)]
Address = Annotated[str, AfterValidator(_check_bind)]
HeaderName = Annotated[str, AfterValidator(_check_header)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_split)]
Dialects = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_check_dialects)]
DialectsWithPort = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_check_usual_ports)]
Hosts = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_check_hosts)]
Origins = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_check_origins)]
Gpus = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_check_gpus)]
Provider = Annotated[Literal["auto", "cpu", "cuda", "tensorrt"], AfterValidator(_check_provider)]
FormatPixels = Annotated[dict[str, Annotated[int, Field(ge=1)]], BeforeValidator(_complete_formats)]


def _knob(
    default: object,
    description: str,
    unit: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> Any:
    """One declared setting: its default, one sentence of help, unit and bounds."""
    return Field(default, description=description, json_schema_extra={"unit": unit}, ge=ge, gt=gt, le=le)


class Settings(BaseModel):
    """Every setting of the service, checked; frozen. None: the thread plan decides (`ocrsvc.system.thread_plan`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: Literal["ppocr", "tr", "tr_crnn", "fake"] = _knob("ppocr", "The engine that reads the pages.")
    device: Literal["cpu", "cuda", "auto"] = _knob(
        "auto", "Where the engine computes; cuda refuses to start without a usable GPU, auto takes one if there is one."
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = _knob(
        "auto",
        "How ppocr computes: fp16 wants a GPU, int8 a CPU and `ocrsvc optimize`; auto takes what was measured to win.",
    )
    provider: Provider = _knob(
        "auto",
        "What ppocr computes with in ONNX Runtime: auto is cuda where the device allows it; cuda and tensorrt refuse "
        "to start where they do not work.",
    )
    imaging: Literal["auto", "cpu"] = _knob(
        "auto",
        "Where ppocr prepares pixels for models on a GPU: auto is the card, where cupy is installed and reads what the "
        "CPU reads.",
    )
    gpus: Gpus = _knob(
        (),
        "Cards that the workers are spread over, by nvidia-smi's numbers or UUIDs (also of MIG parts), or all; by "
        "default what CUDA_VISIBLE_DEVICES shows, and without it all.",
    )
    gpu_streams: int = _knob(
        2,
        "Runs of one model that each worker has under way on a card at once; each has a session and memory of its own.",
        "streams",
        ge=1,
        le=8,
    )
    gpu_arena_bytes: ByteCount | None = _knob(
        None,
        "Memory of the card that the arena of each session may take; by default no limit but the card.",
        "bytes",
        ge=64 * 2**20,
        le=2**40,
    )
    tr_home: Path | None = _knob(None, "Folder with libtr.so, ctpn.bin and crnn.bin, for the engine tr.")
    tr_shared_sessions: bool = _knob(
        False, "Let all engine threads of a worker share one pair of Tr sessions instead of one pair each."
    )
    batch_pixels: int = _knob(
        32 * 48 * 320,
        "Largest batch of lines that a GPU reads in one run, in pixels with padding; the memory of a run follows it.",
        "pixels",
        ge=48 * 320,
        le=10**9,
    )
    batch_wait_s: float = _knob(
        0.002, "Longest time that a line waits on a GPU for others to be read with it.", "s", ge=0, le=10
    )
    model_cache: Path | None = _knob(
        None,
        "Folder that keeps optimised models for the next start, for the engine ppocr; by default ocrsvc in the user's "
        "cache folder.",
    )
    bind: Address = _knob("127.0.0.1:8000", "Address to listen on; gunicorn's -b wins.")
    hosts: Hosts = _knob(
        (),
        "Names and addresses, without ports, that requests may be for (header Host), or * for any; by default the "
        "loopback ones where the service listens on a loopback address, and any elsewhere. Behind a proxy on the same "
        "machine list the names that its clients use.",
    )
    cors: Origins = _knob(
        (),
        "Web sites whose pages may read answers, such as https://app.example.com, or * for all; by default none.",
    )
    grpc_bind: Addresses = _knob(
        (), "Addresses to listen on for gRPC: KServe v2, TensorFlow Serving and Paddle Serving, all at each of them."
    )
    dialects: Dialects = _knob(
        tuple(USUAL_PORTS), "Foreign wire formats that are spoken beside the native one; none switches them all off."
    )
    usual_ports: DialectsWithPort = _knob(
        (),
        "Dialects whose usual port is listened on as well, at the host of bind, for clients that have it hard-wired; "
        "gunicorn's -b wins.",
    )
    trwebocr_boxes: Literal["rect", "poly"] = _knob(
        "rect",
        "How /api/tr-run/ answers: rect as TrWebOCR does, poly as chineseocr_lite does, which has the same address.",
    )
    workers: int | None = _knob(None, "Worker processes; gunicorn's -w wins.", "processes", ge=1, le=256)
    threads: int | None = _knob(
        None, "Threads that hold requests in each worker; gunicorn's --threads wins.", "threads", ge=1, le=4096
    )
    engine_threads: int | None = _knob(
        None, "Threads that run the engine in each worker, one engine handle each.", "threads", ge=1, le=256
    )
    queue_size: int = _knob(
        64,
        "Images that may wait for the engine in each worker, batch ones in three quarters of the places; more are "
        "answered 503.",
        "images",
        ge=1,
        le=100_000,
    )
    deadline_s: float = _knob(
        60.0, "Longest time that a request may take before it is answered 504.", "s", gt=0, le=3600
    )
    max_body_bytes: ByteCount = _knob(
        64 * 2**20, "Largest request body; a larger one is answered 413.", "bytes", ge=1024, le=4 * 2**30
    )
    request_memory_bytes: MemoryAmount | None = _knob(
        None,
        "Memory that the requests of each worker may hold together, from a request's first byte until its answer has "
        "left; what does not fit is answered 503, or 413 where it never can; by default a quarter of the memory for "
        "all workers, 384 MiB each at most.",
        "bytes",
    )
    caller_requests: int = _knob(
        0,
        "Requests that one caller may have under way in each worker; more are answered 429; 0 is no limit.",
        "requests",
        ge=0,
        le=100_000,
    )
    caller_header: HeaderName = _knob(
        "",
        "Header that tells callers apart, by its last entry, such as X-Forwarded-For behind a proxy that sets it; "
        "empty, or where a request lacks it, the remote address does (of IPv6 its first 64 bits).",
    )
    max_pixels: int = _knob(
        50_000_000,
        "Most pixels that an image's header may declare; more is answered 413.",
        "pixels",
        ge=1,
        le=2**31 - 1,
    )
    format_max_pixels: FormatPixels = _knob(
        _FORMAT_MAX_PIXELS,
        "Most pixels per image format, beside max_pixels: the lower one holds; formats left out keep their default.",
        "pixels",
    )
    max_pages: int = _knob(
        50, "Most pages of one document that a request may ask for; more are answered 413.", "pages", ge=1, le=100_000
    )
    tasks_dir: Path | None = _knob(
        None,
        "Folder in which the service makes one for documents that are read while nobody is connected (Umi-OCR's "
        "/api/doc), and removes it when it ends; by default the system's for temporary files.",
    )
    tasks_bytes: ByteCount = _knob(
        2**30,
        "Most bytes of such documents and their results, all workers together; callers share them, and finished "
        "documents make room for new ones; 0 takes none.",
        "bytes",
        ge=0,
        le=2**50,
    )
    tasks_s: float = _knob(86_400.0, "How long such a document and its results are kept.", "s", gt=0, le=10**9)
    pdf_dpi: int = _knob(
        200,
        "Resolution at which the pages of a PDF are drawn, lower where a page would have too many pixels; 0 reads no "
        "PDFs.",
        "dpi",
        ge=0,
        le=1200,
    )
    max_requests: int = _knob(
        0, "Requests after which a worker is replaced by a fresh one; 0 is never.", "requests", ge=0, le=10**9
    )
    max_requests_jitter: int = _knob(
        0,
        "Upper end of a random number added to max_requests, so that workers do not go together.",
        "requests",
        ge=0,
        le=10**9,
    )
    max_age_s: float = _knob(
        0.0, "Time after which a ready worker is replaced by a fresh one; 0 is never.", "s", ge=0, le=10**9
    )
    rss_soft_bytes: MemoryAmount | None = _knob(
        None,
        "Resident memory at which a worker is replaced, its successor first; 0 is no limit, a share is of the memory "
        "of the machine or container; by default such that all workers and one successor fill 80 % of that.",
        "bytes",
    )
    rss_hard_bytes: MemoryAmount | None = _knob(
        None,
        "Resident memory at which a worker stops accepting at once, successor or not; 0 is no limit; by default as for "
        "the soft limit, with 90 %.",
        "bytes",
    )
    gpu_soft_bytes: MemoryAmount | None = _knob(
        None,
        "Memory of the card at which a worker is replaced, its successor first; 0 is no limit, a share is of the card; "
        "by default such that all workers, and a successor where there is room for one, fill 85 % of it.",
        "bytes",
    )
    gpu_hard_bytes: MemoryAmount | None = _knob(
        None,
        "Memory of the card at which a worker stops accepting at once, successor or not; 0 is no limit; by default as "
        "for the soft limit, with 95 %.",
        "bytes",
    )
    boot_limit_s: float = _knob(
        600.0, "How long a worker may take to load and warm up its engine before it is ended.", "s", gt=0, le=86400
    )
    isolation: Literal["thread", "process"] = _knob(
        "thread",
        "Where the engine runs: in the worker's threads, or in a child process for each, so that a crash loses nothing "
        "but that child.",
    )
    child_max_images: int = _knob(
        0,
        "Images after which an engine's child process is replaced, its successor first; 0 is never.",
        "images",
        ge=0,
        le=10**9,
    )
    child_memory_bytes: ByteCount | None = _knob(
        None,
        "Memory of its own at which an engine's child process is replaced, its successor first; 0 is no limit; by "
        "default such that all children and one successor fill 80 % of the machine's or container's memory.",
        "bytes",
        ge=0,
        le=2**50,
    )
    child_gpu_bytes: MemoryAmount | None = _knob(
        None,
        "Memory of the card at which an engine's child process is replaced, its successor first, where NVML tells what "
        "each process holds; 0 is no limit, a share is of the card; by default such that all children on one card and "
        "one successor would fill 80 % of it.",
        "bytes",
    )
    quarantine_size: int = _knob(
        256,
        "Most images remembered that killed the engine's child process twice, and as many bodies of requests that "
        "stopped a worker; read at the start only.",
        "images",
        ge=1,
        le=65536,
    )
    quarantine_s: float = _knob(
        3600.0,
        "How long such an image or body is answered 422 without being tried; read at the start only.",
        "s",
        gt=0,
        le=10**9,
    )
    cache_bytes: ByteCount = _knob(
        0,
        "Memory of each worker for pages that were read; the same bytes with the same options are then answered "
        "without the engine; 0 keeps none.",
        "bytes",
        ge=0,
        le=2**40,
    )
    cache_url: str | None = _knob(
        None, "A Redis that keeps such pages for all workers and machines, instead of the workers' own memory."
    )
    cache_s: float = _knob(86_400.0, "How long such a page is kept.", "s", gt=0, le=10**9)
    log_level: Literal["debug", "info", "warning", "error"] = _knob("info", "The least serious events that are logged.")
    access_log: Literal["off", "text", "json"] = _knob(
        "off",
        "One line on stdout for each request, as key=value or as JSON, without its query and without any content.",
    )
    ops: Literal["open", "local", "off"] = _knob(
        "local",
        "Who may ask for /metrics and /ops/…: everybody, callers on the same machine that do not come through a proxy, "
        "or nobody.",
    )
    pidfile: Path | None = _knob(
        None, "File that holds the arbiter's process id while the service runs; gunicorn's -p wins."
    )
    fake_latency_s: float = _knob(0.0, "How long the fake engine waits over an image.", "s", ge=0, le=3600)
    fake_burn_s: float = _knob(0.0, "How long the fake engine keeps a core busy over an image.", "s", ge=0, le=3600)
    fake_leak_bytes: ByteCount = _knob(
        0, "Memory that the fake engine keeps for ever per image.", "bytes", ge=0, le=2**40
    )
    fake_fault: Literal["none", "fail", "hang", "crash", "abort", "segfault", "nonsense"] = _knob(
        "none",
        "What the fake engine does wrong: fail the image, never return, end its process (by SIGKILL, SIGABRT or "
        "SIGSEGV), or answer what no page can be.",
    )
    fake_fault_on: Names = _knob(
        (), "Texts of the images, as the fake engine reads them, that its misbehaviour is for; none named is all."
    )
    fake_warm_up_s: float = _knob(0.0, "How long the fake engine takes to warm up.", "s", ge=0, le=3600)


@dataclass(frozen=True, slots=True)
class Given:
    """One raw value that somebody gave: the setting's name, what it is called at its source, and its source."""

    name: str
    label: str
    value: object
    source: Source


def read_settings(environ: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """The checked settings of this process.

    Args:
        environ: Environment variables; None takes the process's own.
        file: TOML file; None takes the one that OCRSVC_CONFIG names, if any.

    Raises:
        SettingsError: With every complaint at once, one a line: the name, its value, what is accepted.
    """
    return check_settings(gather(environ, file))


def check_settings(given: Mapping[str, Given]) -> Settings:
    """Settings from what `gather` found; raises SettingsError with every complaint, one a line."""
    complaints = [_unknown(item) for item in given.values() if item.name not in Settings.model_fields]
    values = {name: item.value for name, item in given.items() if name in Settings.model_fields}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        bad = dict.fromkeys(str(problem["loc"][0]) for problem in error.errors())
        complaints += [_refusal(given[name]) for name in bad]
        raise SettingsError("\n".join(complaints)) from error
    if complaints:
        raise SettingsError("\n".join(complaints))
    return settings


def gather(environ: Mapping[str, str] | None = None, file: Path | None = None) -> dict[str, Given]:
    """What the file and the environment give, unchecked, by setting name; the environment wins.

    Args:
        environ, file: As for `read_settings`.

    Raises:
        SettingsError: The file cannot be read or is not TOML.
    """
    environ = os.environ if environ is None else environ
    named = environ.get(CONFIG_VARIABLE)
    file = Path(named) if file is None and named else file
    given = {item.name: item for item in _from_file(file)} if file else {}
    return given | {item.name: item for item in _from_environment(environ)}


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """What the OCRSVC_ variables give; empty ones give nothing."""
    for variable, value in environ.items():
        if variable.startswith(PREFIX) and variable != CONFIG_VARIABLE and value != "":
            name = variable.removeprefix(PREFIX)
            # OCRSVC_Engine is not OCRSVC_ENGINE: only one spelling exists, so two can never disagree.
            yield Given(name.lower() if name.isupper() else name, variable, value, "environment")


def _from_file(file: Path) -> Iterator[Given]:
    """What the TOML file gives; raises SettingsError when it cannot be read."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {file} is not a TOML file: {error}.") from error
    for key, value in table.items():
        # As text, so that `workers = true` is as wrong in the file as in the environment.
        plain = value if isinstance(value, dict | list) else str(value)
        yield Given(key, f"{key} (in {file.name})", plain, "file")


def without_passwords(text: str) -> str:
    """The text with stars in place of the passwords of addresses in it."""
    return _PASSWORD.sub(r"\1***@", text)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def unit_of(name: str) -> str:
    """The unit of a setting's number; empty when it has none."""
    extra = Settings.model_fields[name].json_schema_extra
    return str(extra["unit"]) if isinstance(extra, dict) else ""


def help_of(name: str) -> str:
    """The one sentence that says what a setting does."""
    return Settings.model_fields[name].description or ""


def accepted(name: str) -> str:
    """What a setting accepts, for people: "a whole number from 1 to 256", "one of cpu, cuda, auto"."""
    field = Settings.model_fields[name]
    return _describe_kind(name, _plain_type(field)) + _describe_bounds(field)


def _plain_type(field: FieldInfo) -> Any:
    """The field's type without None: a class, a Literal or a generic."""
    if get_origin(field.annotation) in (Union, UnionType):
        return next(part for part in get_args(field.annotation) if part is not NoneType)
    return field.annotation


def _describe_kind(name: str, kind: Any) -> str:
    """The type in words."""
    if name in _ACCEPTED:
        return _ACCEPTED[name]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if kind == MemoryAmount:
        return "bytes, such as 4096, 64MiB or 1GB, or a share up to 100%, such as 80%"
    if name.endswith("_bytes"):
        return "bytes, such as 4096, 64MiB or 1GB,"
    words = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
    return words.get(kind, "names, separated by commas (in the file a list)")


def _describe_bounds(field: FieldInfo) -> str:
    """The bounds in words, with a leading space; empty when there are none."""
    words = []
    for bound in field.metadata:
        if hasattr(bound, "ge"):
            words.append(f" from {bound.ge}")
        elif hasattr(bound, "gt"):
            words.append(f" above {bound.gt}")
        elif hasattr(bound, "le"):
            words.append(f" to {bound.le}" if words and words[0].startswith(" from") else f" up to {bound.le}")
    return "".join(words)


def _unknown(item: Given) -> str:
    """The complaint about a name that is no setting, with the nearest one that is."""
    known = [*Settings.model_fields, "config"]
    near = difflib.get_close_matches(item.name.lower(), known, n=1, cutoff=0.6)
    written = variable_of if item.source == "environment" else str
    hint = f"did you mean {written(near[0])}?" if near else "`ocrsvc settings --markdown` lists those that exist."
    return f"{item.label} is {without_passwords(str(item.value))!r}: no such setting; {hint}"


def _refusal(item: Given) -> str:
    """The complaint about a value that a setting does not accept."""
    return f"{item.label} is {without_passwords(str(item.value))!r}: accepted is {accepted(item.name)}."
