"""`ocrsvc check`: installed packages, engines that open or fail here, and the thread plan."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc import __version__
from ocrsvc.access.manage_keys import open_store, path_of
from ocrsvc.cli.models import named_model
from ocrsvc.cli.options import FILE, check_at_most_one, command, option
from ocrsvc.client.request import body_of
from ocrsvc.connections.certificates import Certificates, files_of, in_utc
from ocrsvc.engines.model.key_source import read_model_key
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import BadModel, EngineUnavailable, KeysUnavailable, OperatorError, SettingsError, UnknownModel
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.repository import ModelRepository
from ocrsvc.plugins import adapters, engines, output_formats
from ocrsvc.settings.describe import without_passwords
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cgroup import read_cpus
from ocrsvc.system.thread_plan import device_for, is_installed, plan_for, set_library_environment

_PACKAGES: Final = (
    *(
        "flask",
        "gunicorn",
        "numpy",
        "opencv-python-headless",
        "pillow",
        "pydantic",
        "rapidocr",
        "onnx",
        "tr",
        "tesserocr",
    ),
    *("onnxruntime", "onnxruntime-gpu", "openvino", "cupy-cuda12x", "cupy-cuda13x"),
    *("tensorrt-cu12-libs", "tensorrt-cu13-libs"),
)
_OPEN_S: Final = 300.0


@command("ocrsvc check", "ocrsvc check --engine ppocr --read page.png", "ocrsvc check --model ko --read page.png")
@option("--engine", metavar="NAME", help="Open only this engine, in this process.")
@option(
    "--model", type=named_model, metavar="NAME[/VERSION]", help="Open only this model of OCRSVC_MODELS with its engine."
)
@option(
    "--read", "page", type=FILE, metavar="PAGE", help="Check how the engine reads this image; see docs/extending.md."
)
def check(engine: str | None, model: WantedModel | None, page: Path | None) -> int:
    """Print what is installed, which engines open here and why others fail, and the thread plan."""
    check_at_most_one(engine=engine, model=model)
    if engine or model or page:
        return _open_engine(engine, model, page)
    settings = read_settings()
    for line in _describe_machine(settings):
        print(line, flush=True)
    opens = {name: _opens_in_subprocess(name) for name in engines()}
    check_runtimes(cpu=is_installed("onnxruntime"), gpu=is_installed("onnxruntime-gpu"))
    if not opens[settings.engine]:
        raise EngineUnavailable(f"The configured engine {settings.engine} does not open here.")
    return 0


def _open_engine(engine: str | None, model: WantedModel | None, page: Path | None) -> int:
    """Open the engine or the model, and check how it reads a page; returns 1 if a check fails."""
    set_library_environment(os.environ)
    from ocrsvc.cli.check_reading import check_reading
    from ocrsvc.engines.open_engine import open_engine, open_engine_in_process
    from ocrsvc.imaging.codecs.decode import PixelLimits, decode

    settings = read_settings(os.environ | ({"OCRSVC_ENGINE": engine} if engine else {}))
    version = _find_version(settings, model) if model else None
    data = body_of(page) if page else b""
    opener = open_engine if settings.isolation == "process" and not page else open_engine_in_process
    plan, failed = plan_for(settings, workers=1), 0
    with closing(opener(settings, plan, model=version)) as opened, closing(opened.open_handle()) as handle:
        info = opened.describe()
        print(f"{info.model} {info.version}, {info.device}, {info.precision}, {info.provider}", flush=True)
        if page:
            image = decode(data, PixelLimits(settings.max_pixels), gray=opened.traits.wants_gray)
            for name, found, fault in check_reading(handle, image.pixels):
                print(f"FAILED  {name}: {fault}" if fault else f"ok      {name}: {found}", flush=True)
                failed += bool(fault)
    return 1 if failed else 0


def _find_version(settings: Settings, model: WantedModel) -> ModelVersion:
    """The version that `model` names, or the newest one if it names no version. Raises UnknownModel."""
    scan = ModelRepository(settings.models, read_model_key(settings)).scan()
    found = scan.find(model.name, model.number or max(scan.numbers(model.name), default=0))
    if found is None:
        raise UnknownModel(f"OCRSVC_MODELS has no readable {model}.", "See `ocrsvc models list`.")
    return found


def check_runtimes(*, cpu: bool, gpu: bool) -> None:
    """Raises OperatorError if both builds of ONNX Runtime are installed."""
    if cpu and gpu:
        raise OperatorError(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files.",
            "Uninstall both, then install one extra: cpu, gpu-cuda12 or gpu-cuda13.",
        )


def _describe_machine(settings: Settings) -> Iterator[str]:
    gpus = ", ".join(sorted(file.name for file in Path("/dev").glob("nvidia[0-9]*")))
    registered = (("engine", engines()), ("adapter", adapters()), ("format", output_formats()))
    added = ((kind, entry) for kind, entries in registered for entry in entries.values() if entry.package)
    plugins = [f"{kind} {entry.name} ({entry.package})" for kind, entry in added]
    yield f"ocrsvc {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield f"packages: {', '.join(f'{name} {metadata.version(name)}' for name in _PACKAGES if is_installed(name))}"
    yield f"plug-ins: {', '.join(plugins) or 'none'}"
    yield f"cpus: {read_cpus():g} usable; gpus: {gpus or 'none'}"
    yield f"engine: {settings.engine}, device: {settings.device} (plans for {device_for(settings)})"
    yield f"plan: {plan_for(settings)}"
    yield f"tls: {describe_tls(settings)}"
    yield f"keys: {describe_keys(settings)}"
    yield f"models: {describe_models(settings)}"


def describe_tls(settings: Settings) -> str:
    """The service's certificate, or why it cannot be served; "off" without TLS."""
    try:
        files = files_of(settings)
        own = None if files is None else Certificates(files).current.certificate
    except SettingsError as error:
        return f"cannot be served: {error}"
    return "off" if own is None else f"{', '.join(own.names)}, until {in_utc(own.not_after_s)}"


def describe_keys(settings: Settings) -> str:
    """The key store's address and number of valid API keys, or why it cannot be read. Does not create the store."""
    if settings.keys is None:
        return "off"
    address, path, valid = without_passwords(settings.keys), path_of(settings.keys), 0
    # Opening a SQLite file that does not exist yet would create it; a missing file simply has no keys.
    if path is None or path.exists() or not path.parent.is_dir():
        try:
            with closing(open_store(settings.keys)) as store:
                valid = sum(key.entry.is_valid(time.time()) for key in store.keys())  # noqa: SIM118  a store is not a dict
        except (KeysUnavailable, SettingsError) as error:
            return f"{address} cannot be used: {error.reason if isinstance(error, KeysUnavailable) else error}"
    return f"{address}, {valid} valid" if valid else f"{address}, none valid: see ocrsvc keys add"


def describe_models(settings: Settings) -> str:
    """The model repository's folder and number of versions, or why it cannot be read."""
    if settings.models is None:
        return "built-in"
    try:
        repository = ModelRepository(settings.models, read_model_key(settings))
        scan, incomplete = repository.scan(), repository.incomplete()
    except (BadModel, SettingsError) as error:
        return f"cannot be read: {error}"
    counts = ((len(scan.versions), "versions"), (len(scan.bad), "bad"), (len(incomplete), "still being copied"))
    summary = ", ".join(f"{count} {words}" for count, words in counts if count)
    return f"{settings.models}, {summary}: see ocrsvc models list"


def _opens_in_subprocess(engine: str) -> bool:
    """Open an engine in a subprocess, because a broken library may kill it, and print the outcome."""
    line = [sys.executable, "-m", "ocrsvc", "check", "--engine", engine]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_OPEN_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        print(f"  {engine}: does not open within {_OPEN_S:.0f} s", flush=True)
        return False
    text = (done.stderr if done.returncode else done.stdout).strip() or f"exit code {done.returncode}"
    last = text.splitlines()[-1]
    if done.returncode == 0:
        outcome = f"opens ({last})"
    elif done.returncode < 0:
        outcome = f"crashes (signal {-done.returncode}): its library or a model is damaged or does not fit this machine"
    else:
        outcome = f"does not open: {last.removeprefix('ocrsvc: ')}"
    print(f"  {engine}: {outcome}", flush=True)
    return done.returncode == 0
