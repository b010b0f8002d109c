"""Serves the OpenAPI 3.1 description of the native API from openapi.yaml."""

from importlib.resources import files
from typing import Any

import yaml

from ocrsvc import __version__
from ocrsvc.http.options import FORMAT_ALIASES, STREAM_FORMS
from ocrsvc.plugins import output_formats


def openapi(*, wants_keys: bool = False, fetches_urls: bool = False) -> dict[str, Any]:
    """The API's description; `wants_keys` adds API keys, `fetches_urls` URLs as input."""
    text = files(__package__).joinpath("openapi.yaml").read_text("utf-8")
    # The loader of libyaml, which PyYAML's wheels include, is ten times faster.
    described: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    del described["x-shared"]
    described["info"]["version"] = __version__
    _add_formats(described["paths"]["/v1/ocr"]["post"])
    if not wants_keys:
        del described["security"], described["components"]["securitySchemes"]
    if not fetches_urls:
        for path in ("/v1/ocr", "/v1/jobs"):
            _remove_url(described["paths"][path]["post"]["requestBody"]["content"])
    return described


def _add_formats(reading: dict[str, Any]) -> None:
    """Add all output formats, including those of plug-ins, to the description of POST /v1/ocr."""
    content, names = reading["responses"]["200"]["content"], ["json", *output_formats()]
    for name, form in output_formats().items():
        content.setdefault(form.media_type, {"schema": {"description": f"With format={name}: {form.help}."}})
    name_pattern = "|".join((*names, *FORMAT_ALIASES))
    several = {"type": "string", "pattern": f"^(?:{name_pattern})(?:,(?:{name_pattern}))*$"}
    description = (
        f"Format of the response: JSON; {'; '.join(form.help for form in output_formats().values())}. Several formats "
        f"come as a zip. Only alone: {'; '.join(form.help for form in STREAM_FORMS.values())}. Without it, the header "
        "Accept decides, else JSON."
    )
    for parameter in reading["parameters"]:
        if parameter["name"] == "format":
            parameter.update(description=description, schema={"anyOf": [{"enum": [*names, *STREAM_FORMS]}, several]})


def _remove_url(bodies: dict[str, Any]) -> None:
    for body in bodies.values():
        if "url" in body["schema"].get("properties", {}):
            del body["schema"]["properties"]["url"]
            body["schema"]["anyOf"].remove({"required": ["url"]})
