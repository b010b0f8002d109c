"""`ocrsvc optimize`: chooses runtime and precision of the models by measuring the user's pages on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ocrsvc.cli.options import FILE, command, option
from ocrsvc.cli.output import show_progress
from ocrsvc.errors import CallerError, NothingSent, OperatorError
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import device_for, set_library_environment

if TYPE_CHECKING:
    from ocrsvc.imaging.codecs.decode import PixelLimits
    from ocrsvc.results import Pixels

_ENDINGS: Final = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
)
# With fewer characters, comparing the texts that two models read is not meaningful.
MIN_CHARACTERS: Final = 500


@command("ocrsvc optimize --pages scans/", "ocrsvc optimize --pages a.png b.png c.png")
@option("--pages", multiple=True, type=FILE, required=True, help="Image, or folder of images.")
@click.argument("more", nargs=-1, type=FILE, metavar="[FILE]...", help="Further ones; a few dozen pages suffice.")
@option("--out", type=FILE, metavar="FOLDER", help="Folder for the choice; by default OCRSVC_MODEL_CACHE.")
def optimize(pages: Sequence[Path], more: Sequence[Path], out: Path | None) -> None:
    """Choose the fastest runtime and precision of ppocr's models for your pages and CPUs."""
    set_library_environment(os.environ)
    from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
    from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part
    from ocrsvc.engines.ppocr.runtime.session import SessionConfig
    from ocrsvc.engines.ppocr.runtime_choice import choose, store_choice
    from ocrsvc.engines.ppocr.runtime_proof import prove_runtimes
    from ocrsvc.imaging.codecs.decode import PixelLimits

    settings = read_settings()
    _check(settings)
    folder = out or settings.model_cache or default_folder()
    if folder is None:
        raise OperatorError("There is no home folder for the choice.", "Name a folder with --out.")
    files, limits, cache = list(_files_in([*pages, *more])), PixelLimits(settings.max_pixels), ModelCache(folder)
    parts = built_in_part(DETECTION), built_in_part(RECOGNITION)
    config = SessionConfig("cpu", 1, provider=settings.provider)
    proofs = prove_runtimes(parts, config, cache, _pixels_of(files, limits))
    characters = max((proof.count for proof in proofs if proof.model == "recognition"), default=0)
    if characters < MIN_CHARACTERS:
        what = f"Only {characters} characters were read in {len(files)} files, too few to compare models."
        raise NothingSent(what, f"Name more pages with --pages, with at least {MIN_CHARACTERS} characters.")
    print(*proofs, sep="\n")
    choice = choose(proofs, f"by `ocrsvc optimize` with {len(files)} files")
    if not store_choice(cache, parts, settings.provider, choice):
        raise OperatorError(f"The choice cannot be written to {folder}.", "Name another folder with --out.")
    print(f"written to {folder}: detection {choice.detection}, recognition {choice.recognition}, from the next start")
    if out is not None:
        print(f"start with OCRSVC_MODEL_CACHE={folder}")


def _check(settings: Settings) -> None:
    """Raises OperatorError unless ppocr runs on CPUs, and the settings leave its precision and runtime open."""
    if settings.engine != "ppocr":
        raise OperatorError(f"OCRSVC_ENGINE={settings.engine} has no models to optimise.", "Set OCRSVC_ENGINE=ppocr.")
    if settings.precision != "auto" or settings.provider not in ("auto", "cpu"):
        raise OperatorError("OCRSVC_PRECISION or OCRSVC_PROVIDER already sets the choice.", "Unset both.")
    if device_for(settings) == "cuda":
        raise OperatorError("The models run on a GPU here; the choice is for CPUs.", "Set OCRSVC_DEVICE=cpu.")


def _files_in(paths: Sequence[Path]) -> Iterator[Path]:
    """The named files, and the sorted images of named folders."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if file.suffix.lower() in _ENDINGS)
        else:
            yield path


def _pixels_of(files: Sequence[Path], limits: PixelLimits) -> Iterator[Pixels]:
    """Decode the pages one by one; unreadable files are reported and skipped."""
    from ocrsvc.imaging.codecs.decode import decode

    for number, file in enumerate(files):
        show_progress(number, len(files), f"reading {file.name}")
        try:
            yield decode(file.read_bytes(), limits, gray=False).pixels
        except (CallerError, OSError) as error:
            print(f"ocrsvc: skipped {file}: {error}", file=sys.stderr)
    show_progress(len(files), len(files), "read")
