"""Reads the page images that OCRmyPDF draws: by an engine in this process, or by a service; once for each process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from ocrmypdf import exceptions
from ocrmypdf.exceptions import ExitCodeException

from ocrsvc.errors import BadOption, CallerError, OcrsvcError, OperatorError
from ocrsvc.records import Page, ReadOptions
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

PAGE_S: Final = 600.0
_STOP_S: Final = 5.0

# The first that fits.
_RAISED: Final[tuple[tuple[type[OcrsvcError], type[ExitCodeException]], ...]] = (
    (OperatorError, exceptions.MissingDependencyError),
    (BadOption, exceptions.BadArgsError),
    (CallerError, exceptions.InputFileError),
    (OcrsvcError, exceptions.SubprocessOutputError),
)


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """Who reads: a service at this URL, or several with commas between, else an engine in each of so many processes.

    The language of the text is for who has models to choose from; each engine takes its share of the processor.
    """

    url: str = ""
    key_file: str = ""
    lang: str = ""
    jobs: int = 1


def read_image(image: Path, choice: ReaderChoice) -> Page:
    """What is on an image, with words. Raises an exception of OCRmyPDF."""
    try:
        return _reader(choice)(image.read_bytes())
    except OcrsvcError as error:
        raise raised_as(error) from error


def raised_as(error: OcrsvcError) -> ExitCodeException:
    """The same failure in OCRmyPDF's terms, with the sentence."""
    return next(kind for own, kind in _RAISED if isinstance(error, own))(f"ocrsvc: {error}")


@cache
def _reader(choice: ReaderChoice) -> Callable[[bytes], Page]:
    """What reads, opened when it is first needed. Raises OcrsvcError."""
    return _service_reader(choice) if choice.url else _engine_reader(choice)


def _service_reader(choice: ReaderChoice) -> Callable[[bytes], Page]:
    try:
        from ocrsvc.client.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(
            f"A service needs the package {error.name}.", "Install the extra: ocrsvc[client]."
        ) from error
    urls: str | list[str] = choice.url.split(",") if "," in choice.url else choice.url
    client = Client(urls, timeout_s=PAGE_S, api_key=_key(choice.key_file))
    atexit.register(client.close)
    return lambda image: client.read(image, words=True, lang=choice.lang or None).pages[0].record()


def _key(file: str) -> str | None:
    """The key in a file; None leaves it to the environment. Raises OperatorError."""
    if not file:
        return None
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"The key file {file} cannot be read.", "Check its name and permissions.") from error


def _engine_reader(choice: ReaderChoice) -> Callable[[bytes], Page]:
    set_library_environment(os.environ)
    from ocrsvc.pipeline.read import Reader

    settings = read_settings(os.environ)
    reader = Reader(settings, plan_for(settings, workers=max(1, choice.jobs)))
    reader.start()
    atexit.register(reader.stop, _STOP_S)
    options = ReadOptions(words=True, lang=choice.lang or None)
    return lambda image: reader.read(image, options, PAGE_S).page
