"""Chooses the parts of a model of the engine ppocr among PaddleOCR's, RapidOCR's or TurboOCR's files.

A detector, one recognizer or several, and their dictionaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import ValidationError

from ocrsvc.engines.model.description import Description, Detection, Recognition, Tier, first_fault
from ocrsvc.engines.ppocr.graph.inspection import OnnxGraph, inspect_model
from ocrsvc.errors import BadModel
from ocrsvc.models.importers.dictionaries import Dictionary, find_dictionary, languages_of, read_dictionary
from ocrsvc.models.importers.paddle_config import DETECTORS, RECOGNIZERS, PaddleConfig, parse_config
from ocrsvc.models.importers.source_files import MOST_MODEL_BYTES, NewModel, SourceFile, Wanted, files_of

_MAIN: Final = "main"
# What PaddleOCR's detectors are trained with, where nothing says otherwise; RapidOCR feeds its as recognizers are fed.
_IMAGENET: Final = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_RAPIDOCR: Final = re.compile(r"_det_\w+\.onnx$", re.IGNORECASE)
_HEIGHT_PX: Final = 48
_RIGHT_TO_LEFT: Final = frozenset({"ar", "fa", "he", "ur"})
_PART_OF_NAME: Final = re.compile(r"_(mobile_|server_|tiny_|small_|medium_)?(det|rec)$")
_WORD: Final = re.compile(r"[a-z0-9]+")
_TIERS: Final = frozenset(get_args(Tier))
_MAKES: Final = {DETECTORS: "detector", RECOGNIZERS: "recognizer"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """An ONNX model that may become a part, and what its `inference.yml` says; empty without one."""

    file: SourceFile
    graph: OnnxGraph
    config: PaddleConfig

    @property
    def tier(self) -> str | None:
        """The tier in its name, or in that of one of its folders."""
        found = _TIERS & set(_WORD.findall(f"{self.file.name} {self.config.model_name}".lower()))
        return min(found) if len(found) == 1 else None

    @property
    def script(self) -> str | None:
        """The script that it is for, where it lies in rec/SCRIPT/, as TurboOCR has them."""
        folders = self.file.folder.relative_to(self.file.root).parts
        return folders[-1].lower() if len(folders) > 1 and folders[-2] == "rec" else None

    def dictionary(self, files: Sequence[SourceFile]) -> Dictionary:
        """The dictionary of a recognizer. Raises BadModel."""
        return find_dictionary(self.file, self.graph, self.config.characters, files)


@dataclass(frozen=True, slots=True)
class _Recognizer:
    """A recognizer that becomes a part."""

    name: str
    model: Candidate
    dictionary: Dictionary
    languages: Sequence[str] = ()


def find_ppocr(wanted: Wanted, files: Sequence[SourceFile]) -> NewModel:
    """A model of the engine ppocr. Raises BadModel: a part is missing, or there are several that it could be."""
    candidates = _candidates(files)
    detector = _choose("detector", candidates, wanted.tier)
    recognizers = list(_recognizers(wanted, candidates, files))
    main, names = recognizers[0].model, [one.name for one in recognizers]
    if len(set(names)) < len(names):
        raise BadModel(f"Two recognizers have the same name: {', '.join(names)}.", "Give each a name of its own.")
    content: dict[str, SourceFile | bytes] = {"det.onnx": detector.file}
    parts = [_recognition(one) for one in recognizers]
    for one, part in zip(recognizers, parts, strict=True):
        content[part.file] = one.model.file
        if part.dictionary is not None:
            content[part.dictionary] = ("\n".join(one.dictionary.characters) + "\n").encode()
    tier: Any = wanted.tier or (main.tier if main.tier == detector.tier else None)
    title = _title(main, wanted.sources[0].resolve().stem)
    description = Description(title=title, tier=tier, detection=_detection(detector), recognition=tuple(parts))
    used = {id(file) for file in content.values()}
    left_out = [one for one in candidates if id(one.file) not in used]
    notes = [f"{one.file.name} is left out: it is {one.graph.what}." for one in left_out]
    return NewModel(description, content, notes)


def _candidates(files: Sequence[SourceFile]) -> list[Candidate]:
    """What each ONNX model among the files is. Raises BadModel: one cannot be read."""
    models = [file for file in files if file.ending == ".onnx"]
    if not models:
        raise _no_models(files)
    return [_candidate(file, inspect_model(file.read(MOST_MODEL_BYTES), file.name), files) for file in models]


def _candidate(file: SourceFile, graph: OnnxGraph, files: Sequence[SourceFile]) -> Candidate:
    for config_file in files:
        if config_file.ending in (".yml", ".yaml") and config_file.folder == file.folder:
            config = parse_config(config_file.read_text(), config_file.name)
            # A folder may hold both models, and the configuration of one.
            if _MAKES.get(config.post_process) == graph.kind:
                return Candidate(file, graph, config)
            if graph.kind == "recognizer" and config.post_process and config.post_process not in _MAKES:
                what = f"a model whose output {config.post_process} decodes, accepted is {RECOGNIZERS}"
                return Candidate(file, OnnxGraph("other", what), config)
    return Candidate(file, graph, PaddleConfig())


def _no_models(files: Sequence[SourceFile]) -> BadModel:
    """Why nothing was found: PaddlePaddle's own files say that they are to be converted."""
    paddle = next((file for file in files if file.ending in (".pdmodel", ".pdiparams")), None)
    if paddle is None:
        return BadModel(
            "There is no ONNX model among these files.",
            "Accepted are a detector (.onnx) and a recognizer (.onnx) with its dictionary; PaddleOCR's folders with "
            "inference.onnx and inference.yml; a folder with libtr.so, ctpn.bin and crnn.bin; or a folder with a "
            "model.toml.",
        )
    names = {file.base for file in files if file.folder == paddle.folder}
    program = "inference.pdmodel" if "inference.pdmodel" in names else "inference.json"
    return BadModel(
        f"{paddle.name} is a model of PaddlePaddle, which has to be converted to ONNX first.",
        "In a virtual environment of its own: pip install paddlepaddle paddle2onnx; then in the folder: paddle2onnx "
        f"--model_dir . --model_filename {program} --params_filename inference.pdiparams --save_file inference.onnx. "
        "Leave inference.yml beside it.",
    )


def _recognizers(wanted: Wanted, candidates: Sequence[Candidate], files: Sequence[SourceFile]) -> Iterator[_Recognizer]:
    """The first one, those of other scripts that lie beside it, and those that the operator names."""
    main = _choose("recognizer", [one for one in candidates if one.script is None], wanted.tier)
    if wanted.dictionary is None:
        dictionary = main.dictionary(files)
    else:
        dictionary = read_dictionary(files_of(wanted.dictionary)[0], main.graph, main.file.name)
    yield _Recognizer(_MAIN, main, dictionary, wanted.languages)
    for one in candidates:
        if one.script is not None and one.graph.kind == "recognizer":
            yield _Recognizer(one.script, one, one.dictionary(files))
    for name, path in wanted.recognizers.items():
        beside = files_of(path)
        one = _choose("recognizer", _candidates(beside), None)
        yield _Recognizer(name, one, one.dictionary(beside))


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
    names, tiers = ", ".join(one.file.name for one in found), sorted({one.tier for one in found if one.tier})
    or_tier = f", or choose with --tier {'|'.join(tiers)}" if tiers else ""
    raise BadModel(f"There are several that could be the {kind}: {names}.", f"Name the files{or_tier}.")


def _recognition(one: _Recognizer) -> Recognition:
    config, stem = one.model.config, "" if one.name == _MAIN else f"_{one.name}"
    languages = tuple(one.languages) or languages_of(one.dictionary.characters)
    members: dict[str, Any] = {
        "name": one.name,
        "file": f"rec{stem}.onnx",
        "dictionary": None if one.dictionary.is_property else f"dict{stem}.txt",
        "adds_space": one.dictionary.adds_space,
        "height_px": one.model.graph.height_px or config.height_px or _HEIGHT_PX,
        "languages": languages,
        "direction": "rtl" if _RIGHT_TO_LEFT & set(languages) else "ltr",
    }
    try:
        return Recognition.model_validate(members | _said(config, "mean", "std"))
    except ValidationError as error:
        raise BadModel(f"{one.model.file.name}: {first_fault(error)}.", "See docs/models.md.") from error


def _detection(one: Candidate) -> Detection:
    said = _said(one.config, "mean", "std", "map_threshold", "box_threshold", "unclip_ratio")
    usual = {} if _RAPIDOCR.search(one.file.base) else _IMAGENET
    return Detection.model_validate({"file": "det.onnx", **usual, **said})


def _said(config: PaddleConfig, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(config, name)) is not None}


def _title(main: Candidate, usual: str) -> str:
    """Such as PP-OCRv6 tiny, from what its `inference.yml` calls it."""
    name = main.config.model_name
    match = _PART_OF_NAME.search(name)
    if match is None:
        return name or usual
    return f"{name[: match.start()]} {(match[1] or '').rstrip('_')}".rstrip()
