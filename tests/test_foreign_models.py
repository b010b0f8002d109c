"""How other servers' clients choose a language or a model, where there is a model repository."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from models_support import make_fake_version

from ocrsvc.adapters.ocr_space.http import LANGUAGES, read_options
from ocrsvc.adapters.umi_ocr.options import OPTIONS, language_choices, options_for, parse_image_options
from ocrsvc.engines.model.languages import AUTO, is_tag
from ocrsvc.errors import BadOption
from ocrsvc.http.parsed_body import Content
from ocrsvc.models.model_control import ModelList, VersionStatus


@pytest.fixture
def listed(tmp_path: Path) -> ModelList:
    """A model for Chinese and English with a label, one for Russian and Thai, and one that serves no more."""
    east = make_fake_version(tmp_path, "east", 2, languages=("zh", "en"))
    north = make_fake_version(tmp_path, "north", 1, languages=("ru", "th"))
    old = make_fake_version(tmp_path, "old", 1, languages=("ko",))
    return ModelList(
        "east",
        (
            VersionStatus("east", 2, "AVAILABLE", "", ("canary",), east),
            VersionStatus("north", 1, "AVAILABLE", "", (), north),
            VersionStatus("old", 1, "END", "It is not wanted.", (), old),
            VersionStatus("torn", 1, "END", "It is damaged."),
        ),
    )


def asked_of_ocr_space(language: str, *, has_models: bool) -> str | None:
    return read_options(Content(fields=(("language", language),)), has_models=has_models).lang


def test_the_languages_of_ocr_space_are_tags() -> None:
    assert all(tag == AUTO or is_tag(tag) for tag in LANGUAGES.values())
    assert asked_of_ocr_space("CHT", has_models=True) == "zh-hant"
    assert asked_of_ocr_space("auto", has_models=True) == AUTO


def test_without_a_repository_no_language_decides_anything() -> None:
    assert asked_of_ocr_space("rus", has_models=False) is None
    assert parse_image_options({"ocr.language": ["what", "ever"]}).read_options(has_models=False).lang is None


def test_umi_ocr_lists_the_languages_that_are_read_and_the_models_that_serve(listed: ModelList) -> None:
    assert language_choices(listed) == [
        ("models/config_chinese.txt", "简体中文"),
        ("models/config_en.txt", "English"),
        ("models/config_cyrillic.txt", "Русский"),
        ("lang=th", "th"),
        ("model=east", "east"),
        ("model=east:canary", "east:canary"),
        ("model=north", "north"),
    ]
    described = options_for(listed)
    assert list(described) == list(OPTIONS)
    assert described["ocr.language"]["default"] == "models/config_chinese.txt"  # type: ignore[index]  # it is a dict


def test_every_value_that_umi_ocr_lists_can_be_sent(listed: ModelList) -> None:
    for value, _title in language_choices(listed):
        asked = parse_image_options({"ocr.language": value}).read_options(has_models=True)
        assert (asked.model or asked.lang or "") in {"zh", "en", "ru", "th", "east", "east:canary", "north"}


def test_a_repository_without_languages_or_models_leaves_the_options_as_they_are() -> None:
    assert options_for(ModelList("gone", ())) == OPTIONS


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (None, {}),
        ("models/config_chinese_cht.txt", {"lang": "zh-hant"}),
        ("日本語", {"lang": "ja"}),
        ("lang=auto", {"lang": "auto"}),
        ("model=East/2", {"model": "east/2"}),
        ("tier=tiny", {"tier": "tiny"}),
    ],
)
def test_umi_ocr_s_language_asks_for(sent: str | None, wanted: dict[str, str]) -> None:
    asked = parse_image_options({} if sent is None else {"ocr.language": sent}).read_options(has_models=True)
    named = {name: value for name in ("model", "tier", "lang") if (value := dataclasses.asdict(asked)[name])}
    assert named == wanted


@pytest.mark.parametrize("sent", ["en", "models/../../etc/passwd", "rotate=90", "model=", "lang=klingon", 7, ["en"]])
def test_a_value_that_umi_ocr_does_not_list_is_refused(sent: object) -> None:
    with pytest.raises(BadOption):
        parse_image_options({"ocr.language": sent}).read_options(has_models=True)
