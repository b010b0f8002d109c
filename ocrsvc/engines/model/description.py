"""The contents of `model.toml`: a model's engine, networks, input formats and languages, as language tags."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ocrsvc.engines.model.files import parse_toml
from ocrsvc.errors import BadModel
from ocrsvc.plugins import engines

MAX_BYTES: Final = 1 << 16  # size limit of a `model.toml`
IN_FOLDER: Final = "./"  # a setting whose value starts with this is a path in the version's folder
Tier = Literal["tiny", "small", "medium"]
# Writing direction: from left to right, from right to left, or in columns downwards, the right column first.
Direction = Literal["ltr", "rtl", "vertical"]
Triple = tuple[float, float, float]
AUTO: Final = "auto"  # let the engine choose the language of each line
ACCEPTED_LANGUAGE: Final = "a language, such as zh, zh-hant, en or ja, or auto"
_TAG: Final = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{2,8}){0,2}")
# Aliases of tags: regions of Chinese, the language names of PaddleOCR and docling, Norwegian.
_SAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(("zh-hans", "zh-cn", "zh-sg", "zh-hans-cn", "zh-hans-sg"), "zh"),
    **dict.fromkeys(("zh-tw", "zh-hk", "zh-mo", "zh-hant-tw", "zh-hant-hk", "zh-hant-mo"), "zh-hant"),
    "ch": "zh",
    "chinese": "zh",
    "chinese-cht": "zh-hant",
    "english": "en",
    "japan": "ja",
    "korean": "ko",
    "german": "de",
    "french": "fr",
    "no": "nb",
}
_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def is_tag(text: str) -> bool:
    """Whether a text is a lower-case language tag such as zh, zh-hant or en."""
    return _TAG.fullmatch(text) is not None


def parse_language(text: str) -> str:
    """Parse a request's language into a lower-case tag or AUTO; capitals, `_` and aliases work. Raises ValueError."""
    tag = text.lower().replace("_", "-")
    tag = _SAME.get(tag, tag)
    if tag != AUTO and not is_tag(tag):
        raise ValueError(f"accepted is {ACCEPTED_LANGUAGE}")
    return tag


def with_language(lang: str, of_each: Sequence[Collection[str]]) -> tuple[int, ...]:
    """Indices of the recognizers or models whose tags include `lang`, a parsed tag; if none, pt-br also matches pt."""
    for tag in (lang, lang.partition("-")[0]):
        if matches := tuple(index for index, tags in enumerate(of_each) if tag in tags):
            return matches
    return ()


def _is(check: Callable[[str], object], fault: str) -> AfterValidator:
    def checked(text: str) -> str:
        if not check(text):
            raise ValueError(fault)
        return text

    return AfterValidator(checked)


File = Annotated[str, _is(_PART.fullmatch, "not a plain file name in the model's folder")]
Language = Annotated[str, _is(is_tag, "not a lower-case language tag such as zh, zh-hant or en")]
Name = Annotated[str, _is(_NAME.fullmatch, "not a plain lower-case name")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Detection(_Table):
    """The detector; its input is (BGR / 255 - mean) / std, and a threshold of None means the engine's default."""

    file: File
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    map_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    box_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    unclip_ratio: Annotated[float, Field(ge=1, le=4)] | None = None


class Recognition(_Table):
    """A line recognizer. A model of ppocr may have several, for different scripts; the first is the default.

    Dictionary, space, height and normalisation are for ONNX models only.
    """

    name: Name = "main"
    file: File
    # text file with one class per line, without CTC's blank; None if the ONNX metadata property `character` has them
    dictionary: File | None = None
    adds_space: bool = True  # whether the space is a class, which follows the dictionary's last one
    height_px: Annotated[int, Field(ge=16, le=128)] = 48
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)
    languages: tuple[Language, ...] = ()  # the most likely language first
    direction: Direction = "ltr"


class Reference(_Table):
    """Pages that a version must read before it gets requests: NAME.png (or .jpg …), with its text in NAME.txt."""

    folder: File = "reference"
    # smallest word F1 against NAME.txt or, if that file is missing, against the text that the serving version reads
    least_f1: Annotated[float, Field(ge=0, le=1)] = 0.9
    # largest ratio of CPU time (on a GPU: elapsed time) to the serving version's
    most_slower: Annotated[float, Field(gt=0)] = 1.5
    most_memory: Annotated[float, Field(gt=0)] = 1.5  # largest ratio of memory to the serving version's


class Encryption(_Table):
    """Ids of the key, and of the set of files that were encrypted together; files of another set are refused."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    set: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Description(_Table):
    """The contents of the `model.toml` of one version of a model."""

    engine: Name = "ppocr"  # name of the engine that runs the model
    title: str = ""
    tier: Tier | None = None
    licence: str = ""
    source: str = ""
    detection: Detection | None = None
    recognition: tuple[Recognition, ...] = ()
    # this model's settings for its engine; names are in lower case and without OCRSVC_
    settings: dict[str, Any] = {}
    reference: Reference = Reference()
    encryption: Encryption | None = None  # None if the files are not encrypted

    @property
    def languages(self) -> tuple[str, ...]:
        """Language tags of all recognizers, without duplicates; if there are none, those of the engine's own model."""
        tags = tuple(dict.fromkeys(tag for part in self.recognition for tag in part.languages))
        return tags if self.recognition or self.engine not in engines() else engines()[self.engine].languages

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of the settings whose value is a path in the version's folder; the engine opens these files itself."""
        return tuple(name for name, value in self.settings.items() if str(value).startswith(IN_FOLDER))

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the model and dictionary files of the detector and the recognizers."""
        named = [self.detection.file] if self.detection is not None else []
        for part in self.recognition:
            named += [part.file, *([part.dictionary] if part.dictionary is not None else [])]
        return tuple(dict.fromkeys(named))


def parse_description(text: str) -> Description:
    """Parse a `model.toml`. Raises BadModel that names the invalid entry."""
    try:
        return Description.model_validate(parse_toml(text))
    except ValidationError as error:
        raise BadModel(f"model.toml: {first_fault(error)}.", "See docs/models.md for the entries.") from error
    except ValueError as error:
        raise BadModel(f"model.toml is not valid TOML: {error}.", "Correct the file.") from error


def first_fault(error: ValidationError) -> str:
    """Describe the first invalid entry, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the whole file'}: {first['msg']}"
