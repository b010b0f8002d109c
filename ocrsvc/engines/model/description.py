"""What `model.toml` says of a model: its engine, its parts, what they take, which languages they read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ocrsvc.engines.model.files import parse_toml
from ocrsvc.engines.model.languages import is_tag
from ocrsvc.errors import BadModel

MOST_BYTES: Final = 1 << 16  # size limit of a `model.toml`
IN_FOLDER: Final = "./"  # prefix of a setting's value that is a path in the version's folder
Tier = Literal["tiny", "small", "medium"]
Direction = Literal["ltr", "rtl", "vertical"]
"""How a recognizer's lines run: rightwards, leftwards, or downwards in columns from right to left."""
Triple = tuple[float, float, float]

_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def _is(check: Callable[[str], object], fault: str) -> AfterValidator:
    def checked(text: str) -> str:
        if not check(text):
            raise ValueError(fault)
        return text

    return AfterValidator(checked)


File = Annotated[str, _is(_PART.fullmatch, "no plain name of a file in the model's folder")]
Language = Annotated[str, _is(is_tag, "no language tag in small letters, such as zh, zh-hant or en")]
Name = Annotated[str, _is(_NAME.fullmatch, "no plain name in small letters")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Detection(_Table):
    """The detector. Pixels are BGR, 0 to 1, less `mean`, divided by `std`; thresholds are those of DB post-processing.

    A threshold that is None is the engine's own.
    """

    file: File
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    map_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    box_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    unclip_ratio: Annotated[float, Field(ge=1, le=4)] | None = None


class Recognition(_Table):
    """A recognizer of lines; a model may have several, for several scripts, and the first is the usual one."""

    name: Name = "main"
    file: File
    # a file with the text of each class in a line, without the blank; None: the property `character`
    dictionary: File | None = None
    adds_space: bool = True  # a space follows the last class of the dictionary
    height_px: Annotated[int, Field(ge=16, le=128)] = 48
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    languages: tuple[Language, ...] = ()  # the likeliest first
    direction: Direction = "ltr"


class Reference(_Table):
    """Pages that a version must read before it takes traffic, with NAME.txt beside NAME.png (or .jpg …)."""

    folder: File = "reference"
    # F1 of the words read, against those texts or what the serving version reads
    least_f1: Annotated[float, Field(ge=0, le=1)] = 0.9
    # times the CPU seconds of the serving version; on a GPU, of its seconds
    most_slower: Annotated[float, Field(gt=0)] = 1.5
    most_memory: Annotated[float, Field(gt=0)] = 1.5  # times the memory of the serving version


class Encryption(_Table):
    """Ids of the key, and of the files that were encrypted together: no other file is taken for one of them."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    set: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Description(_Table):
    """One version of a model, as its `model.toml` says."""

    engine: Name = "ppocr"  # entry of the engine registry that opens it
    title: str = ""
    tier: Tier | None = None
    licence: str = ""
    source: str = ""
    detection: Detection | None = None
    recognition: tuple[Recognition, ...] = ()
    # settings of the engine that hold for this model, by their names without OCRSVC_ in small letters
    settings: dict[str, Any] = {}
    reference: Reference = Reference()
    encryption: Encryption | None = None  # None where the files are plain

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of all recognizers, each once."""
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
    """The description in a `model.toml`. Raises BadModel, which names the entry that is wrong."""
    try:
        return Description.model_validate(parse_toml(text))
    except ValidationError as error:
        raise BadModel(f"model.toml: {first_fault(error)}.", "See docs/models.md for the entries.") from error
    except ValueError as error:
        raise BadModel(f"model.toml is no TOML: {error}.", "Correct the file.") from error


def first_fault(error: ValidationError) -> str:
    """The first entry that is wrong, and why."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the whole'}: {first['msg']}"
