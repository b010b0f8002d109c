"""Cost and benefit of several recognizers in one model, and accuracy of the built-in one by language.

    python benchmarks/languages.py letters [--model FOLDER]
    python benchmarks/languages.py auto [--pages 40] [--others 1 | --other FILE] [--shared FOLDER]
    python benchmarks/languages.py mixed [--pages 10]
    python benchmarks/languages.py confidence [--pages 40] [--shared FOLDER]
    python benchmarks/languages.py scripts [--tessdata FOLDER]

`letters` draws words and sentences of each language that the dictionary covers, and prints the share of its letters
beyond a to z (all letters, if it has no others) that are read right. `auto` reads corpus pages alternately with
`lang=auto` and without, by a model with further recognizers: copies of the built-in one, which cost as much as real
ones and must not change the result, or another one (--other). `mixed` draws pages of English and two synthetic scripts
(tests/stand_in_scripts.py). `confidence` prints the built-in recognizer's confidence on corpus pages, and on languages
with letters that it does not know. `scripts` draws three pages of 20 lines in Korean, Arabic, Thai, Hindi and Russian
(bench/scripts.toml), also degraded, with every other line in English, and with a Latin word in each line, and prints
character error rates of Tesseract's models and the built-in one.

`scripts` needs the extra tesseract and, from Debian, tesseract-ocr-kor, -ara, -tha, -hin, -rus, fonts-noto-core,
fonts-noto-cjk and fonts-thai-tlwg; the others need Debian's fonts-liberation, fonts-dejavu-core and fonts-noto-cjk.
Everything runs in this process on one thread; times are processor seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import cv2
import numpy as np
from bench.corpus import ALL, TUNING, Corpus
from bench.machine import print_machine
from bench.results import write_result
from bench.script_pages import KINDS, draw_script_page
from bench.sentences import SENTENCES
from bench.service import ROOT
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont
from rapidfuzz.distance import Levenshtein

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.model.version import DETECTION, RECOGNITION, ModelVersion, built_in_model, find_version
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.engines.ppocr.engine import PageHandle, PpocrEngine
from ocrsvc.engines.ppocr.pipeline.recognizer import SURE
from ocrsvc.engines.ppocr.runtime.model_parts import read_dictionary, read_parts
from ocrsvc.engines.ppocr.runtime.prepare_model import prepare_properties
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.models.importers.dictionaries import languages_of, letters_of_languages
from ocrsvc.models.importers.find_model import find_model
from ocrsvc.models.importers.source_files import Wanted
from ocrsvc.models.importers.write_version import write_version
from ocrsvc.results import Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from models_support import make_version
from stand_in_scripts import ARABIC, CYRILLIC, StandIn

FONTS = Path("/usr/share/fonts")
LIBERATION = FONTS / "truetype/liberation/LiberationSans-Regular.ttf"
DEJAVU = FONTS / "truetype/dejavu/DejaVuSans.ttf"
CHINESE = FONTS / "opentype/noto/NotoSansCJK-Regular.ttc"
FOREIGN = {"ko": CHINESE} | dict.fromkeys(("ru", "uk", "el"), LIBERATION) | dict.fromkeys(("he", "ar", "hy"), DEJAVU)
SIZES_PX = (22, 30)
TESSERACT = {"ko": "kor", "ar": "ara", "th": "tha", "hi": "hin", "ru": "rus"}
SCRIPT_PAGES = 3
ENGLISH = (
    "quick",
    "brown",
    "foxes",
    "jump",
    "over",
    "lazy",
    "dogs",
    "while",
    "five",
    "wizards",
    "pack",
    "liquor",
    "jugs",
)


def main() -> None:
    """Run the chosen measurement."""
    args = _arguments()
    print_machine()
    figures = {"letters": _letters, "auto": _auto, "mixed": _mixed, "confidence": _confidence, "scripts": _scripts}[
        args.what
    ](args)
    write_result(f"languages_{args.what}", figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["letters", "auto", "mixed", "confidence", "scripts"])
    parser.add_argument("--tessdata", type=Path, default=Path("/usr/share/tesseract-ocr/5/tessdata"))
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--others", type=int, default=1, help="number of recognizers in addition to the first one")
    parser.add_argument("--other", type=Path, help="a recognizer with its dictionary, instead of copies")
    parser.add_argument("--model", type=Path, help="folder of a version, NAME/VERSION; default: the built-in model")
    return parser.parse_args()


@contextmanager
def _opened(model: ModelVersion) -> Iterator[PageHandle]:
    engine = PpocrEngine(SessionConfig("cpu"), parts=read_parts(model))
    yield engine.open_handle()
    engine.close()


def _read(handle: Handle, pixels: Pixels, **options: Any) -> Page:
    (page,) = handle.read([ReadTask(Image(pixels, "png"), ReadOptions(**options))])
    assert isinstance(page, Page), page
    return page


def _draw(lines: Sequence[str], font_file: Path, size: int) -> Pixels:
    """Draw these lines below each other on a page."""
    font = ImageFont.truetype(str(font_file), size)
    width = max(int(font.getlength(line)) for line in lines) + 80
    picture = Picture.new("RGB", (width, int(1.8 * size) * len(lines) + 60), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((40, 30 + int(1.8 * size) * number), line, font=font, fill="black")
    return np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])


def _own(letters: str) -> str:
    """A language's letters beyond a to z; all letters, if it has no others."""
    return "".join(character for character in letters if character not in ascii_lowercase) or letters


def _words(letters: str, source: random.Random, often: int = 8) -> list[str]:
    """Random lines of words: a language's own letters `often` times each, a to z twice, some of them capitals."""
    characters = list(_own(letters)) * often + [character for character in letters if character in ascii_lowercase] * 2
    source.shuffle(characters)
    text = "".join(
        character.upper() if len(character.upper()) == 1 and source.random() < 0.15 else character
        for character in characters
    )
    words = [text[at : at + 6] for at in range(0, len(text), 6)]
    return [" ".join(words[at : at + 5]) for at in range(0, len(words), 5)]


def _letters(args: argparse.Namespace) -> dict[str, Any]:
    model = built_in_model()
    if args.model is not None:
        from ocrsvc.models.repository import ModelRepository

        model = ModelRepository(args.model.parent.parent).open(args.model.parent.name, int(args.model.name))
    figures = {}
    with _opened(model) as handle:
        for language in languages_of(_characters(model)):
            words = _words(letters_of_languages()[language], random.Random(language))
            shares = [_letters_read(handle, language, lines) for lines in (words, SENTENCES.get(language)) if lines]
            figures[language] = shares
            print(f"{language:<8}" + "".join(f" {share:.3f}" for share in shares), flush=True)
    return {"model": str(model), "words_and_sentences": figures}


def _characters(model: ModelVersion) -> list[str]:
    """The dictionary of the model's first recognizer."""
    part = next(iter(read_parts(model).recognition.values()))
    return read_dictionary(part, json.loads(prepare_properties(part)))


def _letters_read(handle: PageHandle, language: str, lines: Sequence[str]) -> float:
    """The share of a language's own letters that are read right."""
    font = CHINESE if language in {"zh", "zh-hant", "ja", "ko"} else LIBERATION
    own = _own(letters_of_languages()[language])
    right = wanted = 0
    for size in SIZES_PX:
        truth = "".join("".join(lines).split())
        read = "".join(_read(handle, _draw(lines, font, size)).text.split())
        found = SequenceMatcher(None, truth, read, autojunk=False).get_matching_blocks()
        hit = {place for block in found for place in range(block.a, block.a + block.size)}
        places = [place for place, character in enumerate(truth) if character.lower() in own or character in own]
        wanted += len(places)
        right += sum(place in hit for place in places)
    return right / wanted


def _with_others(folder: Path, others: int, file: Path | None) -> ModelVersion:
    """The built-in model with another recognizer, or with copies of its recognizer."""
    files = {name: built_in_model().read(name) for name in (DETECTION, RECOGNITION)}
    if file is not None:
        files["other.onnx"] = file.read_bytes()
    recognizers = [RECOGNITION, "other.onnx"] if file is not None else [RECOGNITION] * (1 + others)
    parts = (f'[[recognition]]\nname = "r{number}"\nfile = "{name}"' for number, name in enumerate(recognizers))
    return make_version(folder, "several", 1, "\n".join([f'[detection]\nfile = "{DETECTION}"', *parts]), files)


def _corpus(args: argparse.Namespace) -> Corpus:
    """Some pages of the tuning half, spread evenly."""
    whole = len(Corpus(args.shared, half=TUNING).pages)
    return Corpus(args.shared, every=max(1, whole // args.pages), half=TUNING)


def _auto(args: argparse.Namespace) -> dict[str, Any]:
    corpus, langs = _corpus(args), (None, "auto")
    seconds, texts = dict.fromkeys(langs, 0.0), {lang: list[str]() for lang in langs}
    model_of = partial(_with_others, others=args.others, file=args.other)
    with tempfile.TemporaryDirectory() as folder, _opened(model_of(Path(folder))) as handle:
        for number, page in enumerate(corpus.pages):
            pixels = np.asarray(cv2.imread(str(page.file)), np.uint8)
            for lang in langs if number % 2 else langs[::-1]:
                began = time.process_time()
                texts[lang].append(_read(handle, pixels, lang=lang).text)
                seconds[lang] += time.process_time() - began
    ratio = seconds["auto"] / seconds[None]
    changed = sum(one != other for one, other in zip(*texts.values(), strict=True))
    scores = {str(lang): corpus.tally(texts[lang])[ALL].f1 for lang in langs}
    print(f"{len(corpus.pages)} pages: CPU seconds x {ratio:.3f}, {changed} pages changed, F1 {scores}")
    return {"pages": len(corpus.pages), "others": args.others, "ratio": ratio, "changed": changed, "f1": scores}


def _mixed_page(source: random.Random) -> tuple[Pixels, list[str]]:
    """Ten lines, each in English or in a synthetic script."""
    pixels: Pixels = np.full((900, 1100, 3), 255, np.uint8)
    rows = []
    for number in range(10):
        script: StandIn | None = source.choice([None, CYRILLIC, ARABIC])
        top = 40 + 84 * number
        if script is None:
            rows.append(" ".join(source.sample(ENGLISH, 5)))
            cv2.putText(pixels, rows[-1], (50, top + 36), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 3, cv2.LINE_AA)
        else:
            rows.append(" ".join("".join(source.choices(script.letters, k=source.randint(3, 5))) for _ in range(3)))
            script.draw(pixels, rows[-1], 50, top, 38)
    return pixels, rows


def _mixed(args: argparse.Namespace) -> dict[str, Any]:
    from test_several_recognizers import make_model

    pages = [_mixed_page(random.Random(seed)) for seed in range(args.pages)]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), {"cyrillic": CYRILLIC, "arabic": ARABIC})
        with _opened(model) as handle:
            for lang in (None, "ru", "ar", "auto"):
                read = [set(_read(handle, pixels, lang=lang).text.split("\n")) for pixels, _ in pages]
                right = sum(row in texts for (_, rows), texts in zip(pages, read, strict=True) for row in rows)
                figures[str(lang)] = right / sum(len(rows) for _, rows in pages)
                print(f"lang={lang}: {figures[str(lang)]:.3f} of the lines right", flush=True)
    return {"pages": len(pages), "right": figures}


def _confidence(args: argparse.Namespace) -> dict[str, Any]:
    figures = {}
    with _opened(built_in_model()) as handle:
        pages = _corpus(args).pages
        corpus = [line for page in pages for line in _lines(handle, np.asarray(cv2.imread(str(page.file)), np.uint8))]
        figures["corpus"] = float(np.mean([line >= SURE for line in corpus]))
        print(f"corpus: {figures['corpus']:.3f} of {len(corpus)} lines have a confidence of {SURE} or more")
        for language, font in FOREIGN.items():
            lines = _pieces(" ".join(SENTENCES[language]).split(), random.Random(language))
            found = [one for size in SIZES_PX for one in _lines(handle, _draw(lines, font, size))]
            figures[language] = sum(one >= SURE for one in found) / (len(SIZES_PX) * len(lines))
            print(f"{language}: {figures[language]:.3f} of {len(SIZES_PX) * len(lines)} lines", flush=True)
    return figures


def _scripts(args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(models=Path(folder))
        for lang, name in TESSERACT.items():
            write_version(find_model(Wanted([args.tessdata / f"{name}.traineddata"])), Path(folder), lang)
            for model in (built_in_model(), find_version(Path(folder), lang, 1)):
                engine = open_engine_in_process(settings, ThreadPlan(1, 1, 1), model)
                handle = engine.open_handle()
                for kind in KINDS if model.name == lang else KINDS[:1]:
                    figures[f"{model.name} {lang} {kind}"] = rate, cpu_s = _error_rate(handle, lang, kind)
                    print(f"{lang} {kind} by {model.name}: {rate:.2%} wrong, {cpu_s:.2f} CPU s per page", flush=True)
                handle.close()
                engine.close()
    return figures


def _error_rate(handle: Handle, lang: str, kind: str) -> tuple[float, float]:
    """Character error rate on a language's pages, ignoring white space, and CPU seconds per page."""
    wrong = count = 0
    began_s = time.process_time()
    drawing_s = 0.0
    for number in range(SCRIPT_PAGES):
        drawn_s = time.process_time()
        pixels, lines = draw_script_page(lang, kind, number)
        drawing_s += time.process_time() - drawn_s
        texts = [_normal("\n".join(lines)), _normal(_read(handle, pixels, lang=lang).text)]
        wrong += Levenshtein.distance(*texts)
        count += len(texts[0])
    return wrong / count, (time.process_time() - began_s - drawing_s) / SCRIPT_PAGES


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _pieces(words: Sequence[str], source: random.Random) -> list[str]:
    """The words, one per line, and again in lines of one to six."""
    lines, place = list(words), 0
    while place < len(words):
        count = source.randint(1, 6)
        lines.append(" ".join(words[place : place + count]))
        place += count
    return lines


def _lines(handle: PageHandle, pixels: Pixels) -> list[float]:
    """The confidence of each line of a page."""
    return [line.confidence for line in _read(handle, pixels, min_confidence=0.0).lines]


if __name__ == "__main__":
    main()
