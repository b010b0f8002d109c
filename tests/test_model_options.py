"""The options model, tier and lang: what is accepted, and what they come to where there is one model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from web_support import json_of, running_app

from ocrsvc.adapters.model_protocols.ocr_model import options_from_parameters
from ocrsvc.engines.model.version import BUILT_IN_DESCRIPTION
from ocrsvc.errors import BadOption, UnknownModel
from ocrsvc.http.options import read_options
from ocrsvc.models.model_control import ModelControl
from ocrsvc.models.model_name import WantedModel
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.version_selection import VersionSelector
from ocrsvc.results import ReadOptions
from ocrsvc.settings.settings import Settings


@pytest.mark.parametrize(
    ("name", "sent", "value"),
    [
        ("model", "ppocr", "ppocr"),
        ("model", " PPOCR/1 ", "ppocr/1"),
        ("model", "Invoices:Canary", "invoices:Canary"),
        ("model", "pp-ocr_v6.tiny", "pp-ocr_v6.tiny"),
        ("tier", "Tiny", "tiny"),
        ("lang", "ZH_Hant", "zh-hant"),
        ("lang", "zh-TW", "zh-hant"),
        ("lang", "zh_CN", "zh"),
        ("lang", "sr-Latn", "sr-latn"),
        ("lang", "AUTO", "auto"),
        ("lang", "ch", "zh"),
        ("lang", "chinese_cht", "zh-hant"),
        ("lang", "Japan", "ja"),
        ("model", "ppocr/12", "ppocr/12"),
    ],
)
def test_option_is_parsed(name: str, sent: str, value: str) -> None:
    assert getattr(read_options([(name, sent)]).read, name) == value


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        *(
            ("model", text)
            for text in ("", "..", "ppocr/0", "ppocr/x", "ppocr/99999999999", "a:b/1", "ppocr/1:x", "模")
        ),
        *(("model", text) for text in ("a" * 65, "../../etc/passwd", "ppocr/", "ppocr:")),
        *(("tier", text) for text in ("huge", "")),
        *(("lang", text) for text in ("", "e", "english", "en-", "zh--tw", "en;fr", "e1", "x" * 5000)),
    ],
)
def test_invalid_option_is_refused(name: str, sent: str) -> None:
    with pytest.raises(BadOption, match=f"The option '{name}'"):
        read_options([(name, sent)])


def test_the_list_of_models_has_what_there_is(client: FlaskClient) -> None:
    listed = json_of(client.get("/v1/ocr/models"))
    assert listed["default"] == "ppocr"
    (only,) = listed["models"]
    assert (only["name"], only["version"], only["state"], only["tier"]) == ("ppocr", 1, "AVAILABLE", "small")
    assert only["languages"] == list(BUILT_IN_DESCRIPTION.languages)


def test_an_engine_with_its_own_model_lists_none_and_leaves_nothing_to_choose() -> None:
    with running_app(Settings(engine="tr")) as app:
        assert json_of(app.test_client().get("/v1/ocr/models")) == {"default": None, "models": []}
    control = ModelControl(ModelRepository(None, engine="fake"), None)
    selector = VersionSelector(control, WantedModel(control.catalogue().available[0].name))
    for asked in ({"model": "fake"}, {"tier": "small"}, {"lang": "en"}):
        with pytest.raises(UnknownModel, match="The engine fake has its own model"):
            selector.select(replace(ReadOptions(), **asked))  # type: ignore[arg-type]  # texts are what they are
    selector.select(ReadOptions(lang="auto"))


def test_models_as_tensors_take_tier_and_language_as_parameters_where_there_are_several() -> None:
    sent = {"tier": "Small", "lang": "EN", "model": "what belongs to somebody else"}
    assert options_from_parameters(sent) == ReadOptions()
    assert options_from_parameters(sent, has_models=True) == ReadOptions(tier="small", lang="en")
