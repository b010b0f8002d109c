"""Languages covered by a recognizer's dictionary, and the choice of a recognizer by language."""

import onnx
import pytest
from support import data_of

from ocrsvc.engines.model.description import parse_description, with_language
from ocrsvc.engines.model.version import LANGUAGES, RECOGNITION, built_in_model
from ocrsvc.models.importers.dictionaries import languages_of, letters_of_languages


@pytest.mark.parametrize(("characters", "languages"), data_of("languages")["written"])
def test_a_language_is_supported_if_the_dictionary_has_all_its_letters(characters: str, languages: list[str]) -> None:
    assert languages_of(characters) == tuple(languages)


def test_every_language_can_be_named_in_a_model() -> None:
    listed = ", ".join(f'"{tag}"' for tag in letters_of_languages())
    text = f'[[recognition]]\nfile = "rec.onnx"\nlanguages = [{listed}]'
    assert parse_description(text).languages == tuple(letters_of_languages())


def test_built_in_languages_are_the_measured_ones_of_its_dictionary() -> None:
    entries = onnx.load_from_string(built_in_model().read(RECOGNITION)).metadata_props
    found = languages_of({entry.key: entry.value for entry in entries}["character"].split("\n"))
    assert tuple(tag for tag in found if tag not in {"sk", "az", "eo"}) == LANGUAGES


@pytest.mark.parametrize(("lang", "found"), data_of("languages")["asked"])
def test_exact_language_tag_is_preferred_to_its_prefix(lang: str, found: list[int]) -> None:
    assert with_language(lang, [("zh", "en"), ("sr", "en"), ("zh-hant",)]) == tuple(found)
