"""Adapters are selected by name, listen on their usual ports, and share paths."""

import pytest
from support import data_of
from web_support import json_of, running_app

from ocrsvc.errors import SettingsError
from ocrsvc.plugins import adapters, resolve
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.worker.config import addresses


def test_every_adapter_can_be_imported() -> None:
    assert all(callable(resolve(entry.http)) for entry in adapters().values())
    assert all(resolve(entry.grpc).files for entry in adapters().values() if entry.grpc)


@pytest.mark.parametrize("name", adapters())
def test_each_adapter_can_be_the_only_one_and_can_be_switched_off(name: str) -> None:
    others = tuple(other for other in adapters() if other != name)
    with running_app(Settings(adapters=(name,))) as app:
        assert name in app.blueprints
        assert not set(others) & set(app.blueprints)
    with running_app(Settings(adapters=others)) as app:
        assert name not in app.blueprints


@pytest.mark.parametrize(("variable", "value", "names"), data_of("routing")["chosen"])
def test_adapters_are_chosen_by_name(variable: str, value: str, names: list[str]) -> None:
    assert getattr(read_settings({variable: value}), variable.removeprefix("OCRSVC_").lower()) == tuple(names)


@pytest.mark.parametrize(("environ", "named"), data_of("routing")["refused"])
def test_invalid_adapter_names_are_refused_with_the_list(environ: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(environ)
    assert str(caught.value).startswith(f"{named} is ")
    assert "trwebocr, trwebocr_cpp" in str(caught.value)


@pytest.mark.parametrize(("environ", "expected"), data_of("routing")["listening"])
def test_usual_ports_are_added_to_the_bind_address(environ: dict[str, str], expected: list[str]) -> None:
    assert addresses(read_settings(environ)) == expected


def test_wrong_paths_and_methods_have_their_adapters_error_format() -> None:
    with running_app(Settings(usual_ports=("trwebocr",))) as app:
        client = app.test_client()
        assert client.get("/nowhere").content_type == "application/problem+json"
        answer = client.get("/nowhere", base_url="http://localhost:8089")
        assert (answer.status_code, answer.content_type, json_of(answer)["code"]) == (404, "application/json", 404)
        answer = client.get("/api/trocr")
        assert (answer.status_code, set(answer.headers["Allow"].split(", "))) == (405, {"OPTIONS", "POST"})
        assert answer.content_type == "text/plain; charset=UTF-8"
