"""Chooses the parts of a model of the engine ppocr among files: its detector, its recognizers, their dictionaries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ocrsvc.errors import BadModel
from ocrsvc.model_import.candidates import Candidate, find_candidates
from ocrsvc.model_import.choose_dictionary import find_dictionary, read_dictionary
from ocrsvc.model_import.dictionary import Dictionary
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
_PART_OF_NAME: Final = re.compile(r"_(mobile_|server_|tiny_|small_|medium_)?(det|rec)$")


def find_ppocr(wanted: Wanted, files: Sequence[SourceFile]) -> NewModel:
    """A model of the engine ppocr. Raises BadModel: a part is missing, or there are several that it could be."""
    candidates = find_candidates(files)
    detector = _choose("detector", candidates, wanted)
    main = _choose("recognizer", [one for one in candidates if one.script is None], wanted)
    named = [(name, *_named(path)) for name, path in wanted.recognizers.items()]
    scripts = [(one.script, one, files) for one in candidates if one.script and one.graph.kind == "recognizer"]
    content: dict[str, SourceFile | bytes] = {"det.onnx": detector.file}
    parts = []
    for name, one, beside in ((MAIN, main, files), *scripts, *named):
        dictionary = _dictionary(one, beside, wanted.dictionary if name == MAIN else None)
        parts.append(_recognition(name, one, dictionary, wanted.languages if name == MAIN else ()))
        content |= _files_of(parts[-1], one, dictionary)
    description = Description(
        title=_title(main, wanted.sources[0].resolve().stem), tier=_tier(wanted, detector, main), detection=_detection(detector),
        recognition=tuple(parts),
    )  # fmt: skip
    return NewModel(description, content, list(_left_out(candidates, detector, content)))


def _choose(kind: str, candidates: Sequence[Candidate], wanted: Wanted) -> Candidate:
    """The only one of its kind, or the only one of the tier. Raises BadModel."""
    found = [one for one in candidates if one.graph.kind == kind]
    if not found:
        seen = "; ".join(f"{one.file.name} is {one.graph.what}" for one in candidates)
        raise BadModel(
            f"There is no {kind} among these files{f': {seen}' if seen else ''}.",
            "A detector gives a map of the page, (N, 1, H, W); a recognizer gives classes by step, (N, T, classes). "
            f"Name the {kind}'s file or folder, too.",
        )
    of_tier = [one for one in found if one.tier == wanted.tier] if wanted.tier else found
    # TurboOCR's medium models have no word for it in their names.
    of_tier = of_tier or ([one for one in found if one.tier is None] if len(found) > 1 else found)
    if len(of_tier) == 1:
        return of_tier[0]
    names = ", ".join(one.file.name for one in found)
    raise BadModel(f"There are several that could be the {kind}: {names}.", f"Name the files{_or_tier(found)}.")


def _or_tier(found: Sequence[Candidate]) -> str:
    tiers = sorted({one.tier for one in found if one.tier})
    return f", or choose with --tier {'|'.join(tiers)}" if tiers else ""


def _named(path: Path) -> tuple[Candidate, Sequence[SourceFile]]:
    """A recognizer that the operator names, and the files beside it."""
    files = files_of(path)
    return _choose("recognizer", find_candidates(files), Wanted([path])), files


def _dictionary(one: Candidate, beside: Sequence[SourceFile], named: Path | None) -> Dictionary:
    if named is None:
        return find_dictionary(one, beside)
    assert one.graph.classes is not None
    return read_dictionary(files_of(named)[0], one.graph.classes, one.file.name)


def _recognition(name: str, one: Candidate, dictionary: Dictionary, languages: Sequence[str]) -> Recognition:
    config, stem = one.config, _stem(name)
    given: dict[str, Any] = {"mean": config.mean, "std": config.std}
    return Recognition.model_validate(
        {
            "name": name,
            "file": f"rec{stem}.onnx",
            "dictionary": None if dictionary.is_property else f"dict{stem}.txt",
            "adds_space": dictionary.adds_space,
            "height_px": one.graph.height_px or config.height_px or _HEIGHT_PX,
            "languages": tuple(languages) or languages_of(dictionary.characters),
            **{key: value for key, value in given.items() if value is not None},
        }
    )


def _stem(name: str) -> str:
    return "" if name == MAIN else f"_{name}"


def _files_of(part: Recognition, one: Candidate, dictionary: Dictionary) -> dict[str, SourceFile | bytes]:
    files: dict[str, SourceFile | bytes] = {part.file: one.file}
    if part.dictionary is not None:
        files[part.dictionary] = ("\n".join(dictionary.characters) + "\n").encode()
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
    usual = {} if _RAPIDOCR.search(one.file.path.name) else _IMAGENET
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


def _left_out(candidates: Sequence[Candidate], detector: Candidate, content: dict[str, Any]) -> Iterator[str]:
    used = {id(file) for file in content.values()}
    for one in candidates:
        if id(one.file) not in used and one is not detector:
            yield f"{one.file.name} is left out: it is {one.graph.what}."
