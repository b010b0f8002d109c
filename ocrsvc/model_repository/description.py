"""What `model.toml` says of a model: its engine, its parts, what they take, which languages they read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.language_tag import is_tag
from ocrsvc.model_repository.repository_files import parse_toml

MOST_BYTES: Final = 1 << 16
"""Of a `model.toml`."""

Tier = Literal["tiny", "small", "medium"]

Direction = Literal["ltr", "rtl", "vertical"]
"""How a recognizer's lines run: rightwards, leftwards, or downwards in columns from right to left."""

Triple = tuple[float, float, float]

IN_FOLDER: Final = "./"
"""How a setting's value begins that is a path in the version's folder."""

_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_KEY_ID: Final = r"^[0-9a-f]{16}$"
_SET_ID: Final = r"^[0-9a-f]{32}$"


def _check_file(name: str) -> str:
    """The name of a file below the version's folder; raises ValueError."""
    if not _PART.fullmatch(name):
        raise ValueError("no plain name of a file in the model's folder")
    return name


def _check_language(tag: str) -> str:
    """A language tag in small letters, such as zh, zh-hant, en; raises ValueError."""
    if not is_tag(tag):
        raise ValueError("no language tag in small letters, such as zh, zh-hant or en")
    return tag


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("no plain name in small letters")
    return name


File = Annotated[str, AfterValidator(_check_file)]
Language = Annotated[str, AfterValidator(_check_language)]
Name = Annotated[str, AfterValidator(_check_name)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Detection(_Table):
    """The detector. Pixels are BGR, 0 to 1, before `mean` is taken off and the rest divided by `std`.

    Attributes:
        file: An ONNX model.
        mean, std: Of blue, green and red.
        map_threshold, box_threshold, unclip_ratio: Of DB post-processing; None is what the engine takes.
    """

    file: File
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    map_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    box_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    unclip_ratio: Annotated[float, Field(ge=1, le=4)] | None = None


class Recognition(_Table):
    """A recognizer of lines. A model may have several, for the scripts of its languages; the first is the usual one.

    Attributes:
        name: Told apart by it, such as main or cyrillic.
        file: An ONNX model.
        dictionary: A file with the text of each class in a line, without the blank; None where the model carries it
            (its property `character`).
        adds_space: A space follows the last class of the dictionary.
        height_px: Of a line, as the model is fed it.
        mean, std: As of the detector.
        languages: Those that it reads, the likeliest first.
        direction: Of its lines.
    """

    name: Name = "main"
    file: File
    dictionary: File | None = None
    adds_space: bool = True
    height_px: Annotated[int, Field(ge=16, le=128)] = 48
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    languages: tuple[Language, ...] = ()
    direction: Direction = "ltr"


class Reference(_Table):
    """The pages that a version must read before it takes traffic.

    Attributes:
        folder: With images; NAME.txt beside NAME.png (or .jpg …) is what should be read.
        least_f1: Of the words read, against those texts, or against what the version that serves reads.
        most_slower: Times the CPU seconds of the version that serves; on a GPU, of its seconds.
        most_memory: Times the memory of the version that serves.
    """

    folder: File = "reference"
    least_f1: Annotated[float, Field(ge=0, le=1)] = 0.9
    most_slower: Annotated[float, Field(gt=0)] = 1.5
    most_memory: Annotated[float, Field(gt=0)] = 1.5


class Encryption(_Table):
    """How all files of a version but `model.toml` are encrypted; `ocrsvc models encrypt` writes it.

    Attributes:
        key: The id of the key.
        set: The id of these files: one that was encrypted with others, or alone, is not taken for one of them.
    """

    key: Annotated[str, Field(pattern=_KEY_ID)]
    set: Annotated[str, Field(pattern=_SET_ID)]


class Description(_Table):
    """One version of a model, as its `model.toml` says.

    Attributes:
        engine: The entry of the registry that opens it.
        title: For people.
        tier: How large it is, of its family.
        licence, source: Where it comes from, and under which terms.
        detection, recognition: The parts of the engine ppocr; empty for engines with parts of their own.
        settings: Settings of the engine that hold for this model, by their names without OCRSVC_ in small letters.
            A value that begins with "./" is a path in the version's folder.
        reference: How it proves itself.
        encryption: Of its files; None where they are plain.
    """

    engine: Name = "ppocr"
    title: str = ""
    tier: Tier | None = None
    licence: str = ""
    source: str = ""
    detection: Detection | None = None
    recognition: tuple[Recognition, ...] = ()
    settings: dict[str, Any] = {}
    reference: Reference = Reference()
    encryption: Encryption | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        """Those of all recognizers, each once."""
        return tuple(dict.fromkeys(tag for part in self.recognition for tag in part.languages))

    @property
    def paths(self) -> tuple[str, ...]:
        """The settings that are paths in the version's folder, which the engine opens by itself."""
        return tuple(name for name, value in self.settings.items() if str(value).startswith(IN_FOLDER))

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the parts name."""
        named = [self.detection.file] if self.detection is not None else []
        for part in self.recognition:
            named += [part.file, *([part.dictionary] if part.dictionary is not None else [])]
        return tuple(dict.fromkeys(named))


def parse_description(text: str) -> Description:
    """What a `model.toml` says. Raises BadModel, which names the entry that is wrong."""
    try:
        return Description.model_validate(parse_toml(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise BadModel(f"model.toml: {place}: {first['msg']}.", "See docs/models.md for the entries.") from error
    except ValueError as error:
        raise BadModel(f"model.toml is no TOML: {error}.", "Correct the file.") from error
