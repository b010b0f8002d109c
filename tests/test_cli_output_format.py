"""The format of what commands write, by --format and by the end of the name after -o."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrsvc.cli import main
from ocrsvc.cli.output import formats_for
from ocrsvc.errors import BadOption


@pytest.mark.parametrize(
    ("asked", "name", "expected"),
    [
        (None, "a.pdf", "pdf"),
        (None, "a.ndjson", "ndjson"),
        (None, "a.json", "json"),
        (None, "-", "json"),
        ("ndjson", "a.jsonl", "ndjson"),
        ("md", "a", "md"),
    ],
)
def test_the_result_of_a_job_is_what_its_name_says(asked: str | None, name: str, expected: str) -> None:
    assert formats_for((asked,) if asked else None, Path(name), "json", "ndjson") == (expected,)


def test_json_on_lines_is_no_json_of_a_job() -> None:
    with pytest.raises(BadOption, match=r"Let the name end in \.json, or ask for --format ndjson"):
        formats_for(("json",), Path("a.jsonl"), "json", "ndjson")


@pytest.mark.parametrize("wrong", [["-o", "made.pdf", "--format", "json"], ["-o", "made.zip", "--format", "pdf"]])
def test_a_result_under_the_name_of_another_format_is_not_fetched(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    # Nobody is there to be asked.
    assert main.run(["job", "result", "x", "--url", "http://127.0.0.1:9", *wrong]) == 65
    assert not list(tmp_path.iterdir())
