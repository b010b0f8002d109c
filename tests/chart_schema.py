"""The schema of the chart's values, with the names of all settings. `python tests/chart_schema.py` writes it anew."""

from __future__ import annotations

import json
from typing import Final

from support import ROOT

from ocrsvc.settings.describe import groups, variable_of
from ocrsvc.settings.load import CONFIG_VARIABLE

SCHEMA: Final = ROOT / "deploy" / "helm" / "ocrsvc" / "values.schema.json"
SET_BY_OTHER_VALUES: Final = frozenset(
    {
        "OCRSVC_BIND",
        "OCRSVC_GRPC_BIND",
        "OCRSVC_DEADLINE_S",
        "OCRSVC_DEVICE",
        "OCRSVC_GPU_HARD_BYTES",
        "OCRSVC_TASKS_DIR",
    }
)


def schema_text() -> str:
    """The file as it should be: what is written there, and as names of settings those that are declared."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    declared = {variable_of(name) for group in groups() for name in group.model_fields}
    schema["properties"]["settings"]["propertyNames"] = {
        "enum": sorted(declared - SET_BY_OTHER_VALUES | {CONFIG_VARIABLE})
    }
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
