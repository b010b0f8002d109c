"""`ocrsvc optimize`: chooses what the models are computed with on this machine, measured on the user's own pages."""

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
    from ocrsvc.engines.ppocr.runtime_proof import Proof
    from ocrsvc.imaging.codecs.decode import PixelLimits
    from ocrsvc.results import Pixels

_ENDINGS: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
FEWEST_CHARACTERS: Final = 500  # with fewer, the agreement says nothing


@command("ocrsvc optimize --pages scans/", "ocrsvc optimize --pages a.png b.png c.png")
@option("--pages", multiple=True, type=FILE, required=True, help="An image, or a folder of them.")
@click.argument("more", nargs=-1, type=FILE, metavar="[FILE]...", help="More of them; a few dozen pages are plenty.")
@option("--out", type=FILE, metavar="FOLDER", help="Where to keep the choice; by default in OCRSVC_MODEL_CACHE.")
def optimize(pages: Sequence[Path], more: Sequence[Path], out: Path | None) -> None:
    """Choose the runtime and precision that win on this machine and your pages, for the engine ppocr on CPUs."""
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_environment(os.environ)
    from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
    from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part
    from ocrsvc.engines.ppocr.runtime.session import SessionConfig
    from ocrsvc.engines.ppocr.runtime_proof import choose, prove_runtimes, store_choice
    from ocrsvc.imaging.codecs.decode import PixelLimits

    settings = read_settings()
    _check(settings)
    folder = out or settings.model_cache or default_folder()
    if folder is None:
        raise OperatorError("There is no home to keep the choice in.", "Name a folder with --out.")
    files, limits, cache = list(_files_in([*pages, *more])), PixelLimits(settings.max_pixels), ModelCache(folder)
    parts = built_in_part(DETECTION), built_in_part(RECOGNITION)
    config = SessionConfig("cpu", 1, provider=settings.provider)
    proofs = prove_runtimes(parts, config, cache, _pixels_of(files, limits))
    _check_count(proofs, len(files))
    print(*proofs, sep="\n")
    choice = choose(proofs, f"by `ocrsvc optimize` with {len(files)} files")
    if not store_choice(cache, parts, settings.provider, choice):
        what = f"{folder} cannot be written to, so the choice is as it was."
        raise OperatorError(what, "Name another folder with --out.")
    print(
        f"kept in {folder}: detection by {choice.detection}, recognition by {choice.recognition}, from the next start"
    )
    if out is not None:
        print(f"start with OCRSVC_MODEL_CACHE={folder}")


def _check(settings: Settings) -> None:
    """Raises OperatorError where there is nothing to choose."""
    if settings.engine != "ppocr":
        raise OperatorError(f"OCRSVC_ENGINE={settings.engine} has no models to optimise.", "Set OCRSVC_ENGINE=ppocr.")
    if settings.precision != "auto" or settings.provider not in ("auto", "cpu"):
        what = "OCRSVC_PRECISION or OCRSVC_PROVIDER names what the models are computed with, so there is no choice."
        raise OperatorError(what, "Leave both out.")
    if device_for(settings) == "cuda":
        what = "The models compute on a GPU here, and the choice is one for CPUs."
        raise OperatorError(what, "Set OCRSVC_DEVICE=cpu to make it.")


def _files_in(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as they are named, and the images of a folder in order."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if file.suffix.lower() in _ENDINGS)
        else:
            yield path


def _pixels_of(files: Sequence[Path], limits: PixelLimits) -> Iterator[Pixels]:
    """The pages that can be read, one after the other; what cannot is named."""
    from ocrsvc.imaging.codecs.decode import decode

    for number, file in enumerate(files):
        show_progress(number, len(files), f"reading {file.name}")
        try:
            yield decode(file.read_bytes(), limits, gray=False).pixels
        except (CallerError, OSError) as error:
            print(f"ocrsvc: {file} is left out: {error}", file=sys.stderr)
    show_progress(len(files), len(files), "read")


def _check_count(proofs: Sequence[Proof], files: int) -> None:
    """Raises NothingSent where too little text was read to compare two models."""
    characters = max((proof.count for proof in proofs if proof.model == "recognition"), default=0)
    if characters < FEWEST_CHARACTERS:
        raise NothingSent(
            f"Only {characters} characters were read on {files} files, too few to compare two models.",
            f"Name more pages with --pages, with {FEWEST_CHARACTERS} characters or more.",
        )
