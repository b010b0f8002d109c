"""Makes a ppocr model from PaddleOCR's, RapidOCR's or TurboOCR's files: detector, recognizers and dictionaries."""

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
from ocrsvc.models.importers.source_files import MAX_MODEL_BYTES, NewModel, SourceFile, Wanted, files_of

_MAIN: Final = "main"
# Default normalisation of PaddleOCR's detectors. RapidOCR's detectors are normalised like recognizers.
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
    """An ONNX model that may become a detector or recognizer, with the values of its `inference.yml`, if any."""

    file: SourceFile
    graph: OnnxGraph
    config: PaddleConfig

    @property
    def tier(self) -> str | None:
        """The tier (such as "tiny") in the name of the file, its folders or the model; None for no or several tiers."""
        tiers = _TIERS & set(_WORD.findall(f"{self.file.name} {self.config.model_name}".lower()))
        return min(tiers) if len(tiers) == 1 else None

    @property
    def script(self) -> str | None:
        """The writing system, if the file is in a folder rec/SCRIPT/, as in TurboOCR; else None."""
        folders = self.file.folder.relative_to(self.file.root).parts
        return folders[-1].lower() if len(folders) > 1 and folders[-2] == "rec" else None

    def dictionary(self, files: Sequence[SourceFile]) -> Dictionary:
        """Find the recognizer's dictionary. Raises BadModel."""
        return find_dictionary(self.file, self.graph, self.config.characters, files)


@dataclass(frozen=True, slots=True)
class _Recognizer:
    """A recognizer chosen for the model, with its dictionary and languages."""

    name: str
    model: Candidate
    dictionary: Dictionary
    languages: Sequence[str] = ()


def find_ppocr(wanted: Wanted, files: Sequence[SourceFile]) -> NewModel:
    """Make a model of the engine ppocr. Raises BadModel if a detector or recognizer is missing or ambiguous."""
    candidates = _candidates(files)
    detector = _choose("detector", candidates, wanted.tier)
    recognizers = list(_recognizers(wanted, candidates, files))
    main, names = recognizers[0].model, [recognizer.name for recognizer in recognizers]
    if len(set(names)) < len(names):
        raise BadModel(f"Two recognizers have the same name: {', '.join(names)}.", "Give each its own name.")
    content: dict[str, SourceFile | bytes] = {"det.onnx": detector.file}
    parts = [_recognition(recognizer) for recognizer in recognizers]
    for recognizer, part in zip(recognizers, parts, strict=True):
        content[part.file] = recognizer.model.file
        if part.dictionary is not None:
            content[part.dictionary] = ("\n".join(recognizer.dictionary.characters) + "\n").encode()
    tier: Any = wanted.tier or (main.tier if main.tier == detector.tier else None)
    title = _title(main, wanted.sources[0].resolve().stem)
    description = Description(title=title, tier=tier, detection=_detection(detector), recognition=tuple(parts))
    used = {id(file) for file in content.values()}
    unused = [candidate for candidate in candidates if id(candidate.file) not in used]
    notes = [f"{candidate.file.name} is not used: it is {candidate.graph.text}." for candidate in unused]
    return NewModel(description, content, notes)


def _candidates(files: Sequence[SourceFile]) -> list[Candidate]:
    """Inspect all ONNX models among the files. Raises BadModel if one cannot be read."""
    models = [file for file in files if file.ending == ".onnx"]
    if not models:
        raise _no_models(files)
    return [_candidate(file, inspect_model(file.read(MAX_MODEL_BYTES), file.name), files) for file in models]


def _candidate(file: SourceFile, graph: OnnxGraph, files: Sequence[SourceFile]) -> Candidate:
    for config_file in files:
        if config_file.ending in (".yml", ".yaml") and config_file.folder == file.folder:
            config = parse_config(config_file.read_text(), config_file.name)
            # Use the configuration only for its kind of model: a folder may contain two models, but one configuration.
            if _MAKES.get(config.post_process) == graph.kind:
                return Candidate(file, graph, config)
            if graph.kind == "recognizer" and config.post_process and config.post_process not in _MAKES:
                text = f"a model whose output {config.post_process} decodes, accepted is {RECOGNIZERS}"
                return Candidate(file, OnnxGraph("other", text), config)
    return Candidate(file, graph, PaddleConfig())


def _no_models(files: Sequence[SourceFile]) -> BadModel:
    """The error if there is no ONNX model; for PaddlePaddle's files, it says how to convert them."""
    paddle = next((file for file in files if file.ending in (".pdmodel", ".pdiparams")), None)
    if paddle is None:
        return BadModel(
            "There is no ONNX model among these files.",
            "Accepted are a detector (.onnx) and a recognizer (.onnx) with its dictionary; PaddleOCR's folders with "
            "inference.onnx and inference.yml; a traineddata file of Tesseract; a folder with libtr.so, ctpn.bin and "
            "crnn.bin; or a folder with a model.toml.",
        )
    names = {file.base for file in files if file.folder == paddle.folder}
    program = "inference.pdmodel" if "inference.pdmodel" in names else "inference.json"
    return BadModel(
        f"{paddle.name} is a PaddlePaddle model, which must be converted to ONNX first.",
        "In a separate virtual environment: pip install paddlepaddle paddle2onnx; then in the folder: paddle2onnx "
        f"--model_dir . --model_filename {program} --params_filename inference.pdiparams --save_file inference.onnx. "
        "Keep inference.yml beside it.",
    )


def _recognizers(wanted: Wanted, candidates: Sequence[Candidate], files: Sequence[SourceFile]) -> Iterator[_Recognizer]:
    """The main recognizer, recognizers of other scripts among the files, and recognizers that the operator names."""
    main = _choose("recognizer", [candidate for candidate in candidates if candidate.script is None], wanted.tier)
    if wanted.dictionary is None:
        dictionary = main.dictionary(files)
    else:
        dictionary = read_dictionary(files_of(wanted.dictionary)[0], main.graph, main.file.name)
    yield _Recognizer(_MAIN, main, dictionary, wanted.languages)
    for candidate in candidates:
        if candidate.script is not None and candidate.graph.kind == "recognizer":
            yield _Recognizer(candidate.script, candidate, candidate.dictionary(files))
    for name, path in wanted.recognizers.items():
        own_files = files_of(path)
        candidate = _choose("recognizer", _candidates(own_files), None)
        yield _Recognizer(name, candidate, candidate.dictionary(own_files))


def _choose(kind: str, candidates: Sequence[Candidate], tier: str | None) -> Candidate:
    """The candidate of this kind; `tier` decides among several. Raises BadModel if none or more than one is left."""
    of_kind = [candidate for candidate in candidates if candidate.graph.kind == kind]
    if not of_kind:
        seen = "; ".join(f"{candidate.file.name} is {candidate.graph.text}" for candidate in candidates)
        raise BadModel(
            f"There is no {kind} among these files{f': {seen}' if seen else ''}.",
            "A detector returns a map of the page, (N, 1, H, W); a recognizer returns classes by step, "
            f"(N, T, classes). Name the {kind}'s file or folder, too.",
        )
    of_tier = [candidate for candidate in of_kind if candidate.tier == tier] if tier else of_kind
    # If no name contains the tier, take models without a tier in their names, such as TurboOCR's medium models.
    of_tier = of_tier or ([candidate for candidate in of_kind if candidate.tier is None] or of_kind)
    if len(of_tier) == 1:
        return of_tier[0]
    names = ", ".join(candidate.file.name for candidate in of_kind)
    tiers = sorted({candidate.tier for candidate in of_kind if candidate.tier})
    or_tier = f", or choose with --tier {'|'.join(tiers)}" if tiers else ""
    raise BadModel(f"Several files could be the {kind}: {names}.", f"Name the files{or_tier}.")


def _recognition(recognizer: _Recognizer) -> Recognition:
    model, dictionary = recognizer.model, recognizer.dictionary
    stem = "" if recognizer.name == _MAIN else f"_{recognizer.name}"
    languages = tuple(recognizer.languages) or languages_of(dictionary.characters)
    members: dict[str, Any] = {
        "name": recognizer.name,
        "file": f"rec{stem}.onnx",
        "dictionary": None if dictionary.is_property else f"dict{stem}.txt",
        "adds_space": dictionary.adds_space,
        "height_px": model.graph.height_px or model.config.height_px or _HEIGHT_PX,
        "languages": languages,
        "direction": "rtl" if _RIGHT_TO_LEFT & set(languages) else "ltr",
    }
    try:
        return Recognition.model_validate(members | _values_of(model.config, "mean", "std"))
    except ValidationError as error:
        raise BadModel(f"{model.file.name}: {first_fault(error)}.", "See docs/models.md.") from error


def _detection(detector: Candidate) -> Detection:
    values = _values_of(detector.config, "mean", "std", "map_threshold", "box_threshold", "unclip_ratio")
    defaults = {} if _RAPIDOCR.search(detector.file.base) else _IMAGENET
    return Detection.model_validate({"file": "det.onnx", **defaults, **values})


def _values_of(config: PaddleConfig, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(config, name)) is not None}


def _title(main: Candidate, default: str) -> str:
    """A title such as PP-OCRv6 tiny, from the model name in `inference.yml`."""
    name = main.config.model_name
    match = _PART_OF_NAME.search(name)
    if match is None:
        return name or default
    return f"{name[: match.start()]} {(match[1] or '').rstrip('_')}".rstrip()
