"""Chooses the parts of a model of the engine ppocr among files: its detector, its recognizers, their dictionaries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from ocrsvc.errors import BadModel
from ocrsvc.model_import.candidates import Candidate, find_candidates
from ocrsvc.model_import.dictionary import Dictionary
from ocrsvc.model_import.find_dictionary import find_dictionary, read_dictionary
from ocrsvc.model_import.new_model import NewModel, Wanted
from ocrsvc.model_import.source_files import SourceFile, files_of
from ocrsvc.model_repository.description import Description, Detection, Recognition
from ocrsvc.model_repository.languages import languages_of

MAIN: Final = "main"
_IMAGENET: Final = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""What PaddleOCR's detectors are trained with, where nothing says otherwise."""
_RAPIDOCR: Final = re.compile(r"_det_\w+\.onnx$", re.IGNORECASE)
"""How RapidOCR's detectors are called; it feeds them as a recognizer is fed."""
_HEIGHT_PX: Final = 48
_RIGHT_TO_LEFT: Final = frozenset({"ar", "fa", "he", "ur"})
_PART_OF_NAME: Final = re.compile(r"_(mobile_|server_|tiny_|small_|medium_)?(det|rec)$")


@dataclass(frozen=True, slots=True)
class _Recognizer:
    """A recognizer that becomes a part: its name, and its dictionary."""

    name: str
    model: Candidate
    dictionary: Dictionary
    languages: Sequence[str]


def find_ppocr(wanted: Wanted, files: Sequence[SourceFile]) -> NewModel:
    """A model of the engine ppocr. Raises BadModel: a part is missing, or there are several that it could be."""
    candidates = find_candidates(files)
    detector = _choose("detector", candidates, wanted.tier)
    recognizers = list(_recognizers(wanted, candidates, files))
    main, names = recognizers[0].model, [one.name for one in recognizers]
    if len(set(names)) < len(names):
        raise BadModel(f"Two recognizers have the same name: {', '.join(names)}.", "Give each a name of its own.")
    parts = [(one, _recognition(one)) for one in recognizers]
    content: dict[str, SourceFile | bytes] = {"det.onnx": detector.file}
    for one, part in parts:
        content |= _files_of(part, one)
    description = Description(
        title=_title(main, wanted.sources[0].resolve().stem),
        tier=_tier(wanted, detector, main),
        detection=_detection(detector),
        recognition=tuple(part for _, part in parts),
    )
    return NewModel(description, content, list(_left_out(candidates, content)))


def _recognizers(wanted: Wanted, candidates: Sequence[Candidate], files: Sequence[SourceFile]) -> Iterator[_Recognizer]:
    """The first one, those of other scripts that lie beside it, and those that the operator names."""
    main = _choose("recognizer", [one for one in candidates if one.script is None], wanted.tier)
    named = None if wanted.dictionary is None else files_of(wanted.dictionary)[0]
    dictionary = find_dictionary(main, files) if named is None else read_dictionary(named, main)
    yield _Recognizer(MAIN, main, dictionary, wanted.languages)
    for one in candidates:
        if one.script is not None and one.graph.kind == "recognizer":
            yield _Recognizer(one.script, one, find_dictionary(one, files), ())
    for name, path in wanted.recognizers.items():
        beside = files_of(path)
        one = _choose("recognizer", find_candidates(beside), None)
        yield _Recognizer(name, one, find_dictionary(one, beside), ())


def _choose(kind: str, candidates: Sequence[Candidate], tier: str | None) -> Candidate:
    """The only one of its kind, or the only one of the tier. Raises BadModel."""
    found = [one for one in candidates if one.graph.kind == kind]
    if not found:
        seen = "; ".join(f"{one.file.name} is {one.graph.what}" for one in candidates)
        raise BadModel(
            f"There is no {kind} among these files{f': {seen}' if seen else ''}.",
            "A detector gives a map of the page, (N, 1, H, W); a recognizer gives classes by step, (N, T, classes). "
            f"Name the {kind}'s file or folder, too.",
        )
    of_tier = [one for one in found if one.tier == tier] if tier else found
    # TurboOCR's medium models have no word for it in their names.
    of_tier = of_tier or ([one for one in found if one.tier is None] if len(found) > 1 else found)
    if len(of_tier) == 1:
        return of_tier[0]
    names = ", ".join(one.file.name for one in found)
    raise BadModel(f"There are several that could be the {kind}: {names}.", f"Name the files{_or_tier(found)}.")


def _or_tier(found: Sequence[Candidate]) -> str:
    tiers = sorted({one.tier for one in found if one.tier})
    return f", or choose with --tier {'|'.join(tiers)}" if tiers else ""


def _recognition(one: _Recognizer) -> Recognition:
    config, stem = one.model.config, _stem(one.name)
    given: dict[str, Any] = {"mean": config.mean, "std": config.std}
    languages = tuple(one.languages) or languages_of(one.dictionary.characters)
    try:
        return Recognition.model_validate(
            {
                "name": one.name,
                "file": f"rec{stem}.onnx",
                "dictionary": None if one.dictionary.is_property else f"dict{stem}.txt",
                "adds_space": one.dictionary.adds_space,
                "height_px": one.model.graph.height_px or config.height_px or _HEIGHT_PX,
                "languages": languages,
                "direction": "rtl" if _RIGHT_TO_LEFT & set(languages) else "ltr",
                **{key: value for key, value in given.items() if value is not None},
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadModel(f"{one.model.file.name}: {first['loc'][0]}: {first['msg']}.", "See docs/models.md.") from error


def _stem(name: str) -> str:
    return "" if name == MAIN else f"_{name}"


def _files_of(part: Recognition, one: _Recognizer) -> dict[str, SourceFile | bytes]:
    files: dict[str, SourceFile | bytes] = {part.file: one.model.file}
    if part.dictionary is not None:
        files[part.dictionary] = ("\n".join(one.dictionary.characters) + "\n").encode()
    return files


def _detection(one: Candidate) -> Detection:
    config = one.config
    given: dict[str, Any] = {
        "mean": config.mean,
        "std": config.std,
        "map_threshold": config.map_threshold,
        "box_threshold": config.box_threshold,
        "unclip_ratio": config.unclip_ratio,
    }
    said = {key: value for key, value in given.items() if value is not None}
    usual = {} if _RAPIDOCR.search(one.file.base) else _IMAGENET
    return Detection.model_validate({"file": "det.onnx", **usual, **said})


def _tier(wanted: Wanted, detector: Candidate, main: Candidate) -> Any:
    return wanted.tier or (main.tier if main.tier == detector.tier else None)


def _title(main: Candidate, usual: str) -> str:
    """Such as PP-OCRv6 tiny, from what its `inference.yml` calls it."""
    name = main.config.model_name
    match = _PART_OF_NAME.search(name)
    if match is None:
        return name or usual
    return f"{name[: match.start()]} {(match[1] or '').rstrip('_')}".rstrip()


def _left_out(candidates: Sequence[Candidate], content: Mapping[str, object]) -> Iterator[str]:
    used = {id(file) for file in content.values()}
    for one in candidates:
        if id(one.file) not in used:
            yield f"{one.file.name} is left out: it is {one.graph.what}."
