"""`ocrsvc read`: text and JSON on stdout, complete output files or none, progress, reading through a service."""

import io
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from documents import GRAY, page_texts, pdf, tiff
from support import data_of, wsgi_server
from test_api_files import SETTINGS, client_with

from ocrsvc.cli import main
from ocrsvc.cli.output import formats_for
from ocrsvc.errors import BadOption


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    # It only takes effect before the libraries are loaded.
    monkeypatch.setattr("ocrsvc.cli.read.set_library_environment", lambda _environ: None)
    monkeypatch.chdir(tmp_path)
    Path("a.pdf").write_bytes(pdf(GRAY, GRAY, size=(300, 72)))
    Path("b.tif").write_bytes(tiff([200, 300]))
    Path("junk.png").write_bytes(b"no image")
    assert cv2.imwrite("c.png", np.full((40, 120), 255, np.uint8))


def read(*arguments: str) -> int:
    return main.run(["read", *arguments])


def pages_of(file: str) -> list[list[str]]:
    return [text.split() for text in page_texts(Path(file).read_bytes())]


def test_an_unreadable_file_sets_the_exit_code_and_does_not_stop_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("--no-unwarp", "junk.png", "c.png", "/nowhere.png", "c.png") == 65
    printed = capsys.readouterr()
    assert printed.out.count("==> c.png <==\n120x40\n") == 2
    lines = printed.err.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["ocrsvc", "junk.png"], ["ocrsvc", "/nowhere.png"]]


@pytest.mark.parametrize(("flags", "words", "characters"), [([], 0, 0), (["--words"], 1, 0), (["--characters"], 1, 6)])
def test_json_is_native(flags: list[str], words: int, characters: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert read("c.png", "--json", *flags) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"file", "engine", "pages", "pages_total", "timing"}
    (page,) = answer["pages"]
    assert set(page) == {"page", "width", "height", "angle", "text", "lines"}
    assert (page["width"], page["height"]) == (120, 40)
    found = page["lines"][0].get("words", [])
    assert (len(found), sum(len(word.get("characters", [])) for word in found)) == (words, characters)


def test_all_files_become_one_document_without_failed_pages(capsys: pytest.CaptureFixture[str]) -> None:
    broken = pdf(GRAY, GRAY, GRAY, size=(200, 72)).replace(b"14 0 obj\n<< /Type /Page", b"14 0 obj\n<< /Type /Pagg")
    Path("broken.pdf").write_bytes(broken)
    assert read("--format", "tsv", "--pages", "1,3-", "c.png", "/nowhere.png", "broken.pdf", "c.png") == 65
    printed = capsys.readouterr()
    rows = [row.split("\t") for row in printed.out.splitlines()]
    assert [row[1] for row in rows if row[0] == "1"] == ["1", "2", "4"]
    assert [line.split(": ")[1] for line in printed.err.splitlines()] == ["/nowhere.png", "broken.pdf, page 3"]


def test_a_searchable_pdf_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("a.pdf", "--format", "pdf", "-o", "made.pdf") == 0
    assert capsys.readouterr() == ("", "")
    assert [len(words) for words in pages_of("made.pdf")] == [2, 2]
    assert read("b.tif", "junk.png", "b.tif", "--format", "pdf", "-o", "made.pdf") == 65
    assert [len(words) for words in pages_of("made.pdf")] == [2, 2, 2, 2]
    assert capsys.readouterr().err.startswith("ocrsvc: junk.png: ")


def test_one_or_several_formats_are_written_as_a_zip() -> None:
    assert read("a.pdf", "--format", "md", "-o", "made.zip") == 0
    with zipfile.ZipFile("made.zip") as packed:
        assert packed.namelist() == ["a.md"]
    assert read("a.pdf", "--format", "md,json,txt", "-o", "made.zip") == 0
    with zipfile.ZipFile("made.zip") as packed:
        assert packed.namelist() == ["a.md", "a.json", "a.txt"]
        assert b"words" not in packed.read("a.json")
        assert packed.read("a.md").decode().count("<!-- page") == 1


@pytest.mark.parametrize("arguments", data_of("wrong_outputs")["nothing written"])
def test_invalid_output_options_write_nothing(arguments: list[str]) -> None:
    os.link("a.pdf", "link.pdf")
    before = {file: file.read_bytes() for file in Path().iterdir()}
    assert read(*arguments) == 65
    assert {file: file.read_bytes() for file in Path().iterdir()} == before


@pytest.mark.parametrize(("arguments", "remedy"), data_of("wrong_outputs")["mismatches"])
def test_mismatch_of_ending_and_format_is_refused_before_reading(
    arguments: list[str], remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a folder").mkdir()
    monkeypatch.setattr("ocrsvc.cli.read.read_in_this_process", None)
    assert read("a.pdf", "--format", "xml") == read("a.pdf", "--format", "") == 2
    assert "is not one of json, text, tsv, hocr, alto, md, pdf" in capsys.readouterr().err
    assert read("a.pdf", *arguments) == 65
    assert remedy in capsys.readouterr().err
    assert not list(Path().glob("made*"))


BEGINS = {"made.md": b"", "made.TXT": b"", "made.pdf": b"%PDF-", "made.HTML": b"<?xml", "made.jsonl": b'{"file":'}


@pytest.mark.parametrize("name", [*BEGINS, "made", "made.tsv"])
def test_format_follows_the_file_ending(name: str) -> None:
    assert read("a.pdf", "-o", name) == 0
    data = Path(name).read_bytes()
    assert data.startswith(BEGINS.get(name, b"level\t" if name == "made.tsv" else b""))
    assert (b"<!-- page 2 -->" in data, b"\f" in data) == (name == "made.md", name in {"made", "made.TXT"})


def test_existing_file_is_replaced_only_when_the_new_one_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("made.md").write_text("old")
    Path("made.md").chmod(0o640)

    def fail(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ocrsvc.formats.output_files.write_document", fail)
        assert read("a.pdf", "--format", "md", "-o", "made.md") == 78
    assert (Path("made.md").read_text(), len(list(Path().iterdir()))) == ("old", 5)
    assert read("a.pdf", "--format", "md", "-o", "made.md") == 0
    assert (Path("made.md").read_text() != "old", Path("made.md").stat().st_mode & 0o777) == (True, 0o640)


def test_terminals_get_no_pdf(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert read("a.pdf", "--format", "pdf", "-o", "-") == 0
    assert capfdbinary.readouterr().out.startswith(b"%PDF-")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert read("a.pdf", "--format", "pdf") == 65


def test_a_terminal_shows_the_number_of_pages_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    assert read("a.pdf", "--format", "md", "-o", "made.md") == 0
    assert [row.split("] ")[1].split()[0] for row in shown.getvalue().splitlines()] == ["1/2", "2/2"]


def test_results_of_a_service_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with client_with(SETTINGS) as client:
        with wsgi_server(client.application) as url:
            assert read("a.pdf", "--url", url, "--format", "pdf,md", "-o", "made.zip") == 0
            capsys.readouterr()
            assert read("c.png", "--url", url, "--json", "--timing") == 0
        printed = capsys.readouterr()
        assert re.fullmatch(r"ocrsvc: c\.png: receive \d\.\d+, decode .*, answer \d\.\d+ s\n", printed.err)
        result = json.loads(printed.out)
        assert (result["file"], result["pages"][0]["width"], result["engine"]["name"]) == ("c.png", 120, "fake")
        with zipfile.ZipFile("made.zip") as packed:
            packed.extractall()
        own = client.post("/v1/ocr?format=md", data=Path("a.pdf").read_bytes())
        assert Path("a.md").read_bytes() == own.data
        assert [len(words) for words in pages_of("a.pdf")] == [7, 7]


@pytest.mark.parametrize("reader", [(), ("--url", "http://127.0.0.1:9")])
def test_an_empty_file_is_reported(reader: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.png").touch()
    assert read("empty.png", *reader) == 65
    assert capsys.readouterr().err == "ocrsvc: empty.png: The file is empty. Send an image or a document.\n"


def test_an_unreachable_service_is_reported_once(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port}"
    assert read(*["a.pdf"] * 30, "--url", url, "-o", "made.md") == 69
    what = f"{url} cannot be reached: Connection refused. Check its address and that it runs."
    assert capsys.readouterr().err == f"ocrsvc: a.pdf: {what} 29 more files not read.\n"
    assert not Path("made.md").exists()


@pytest.mark.parametrize(("command", "said"), data_of("refused_commands"))
def test_a_failed_command_names_a_remedy(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with client_with(SETTINGS) as client, wsgi_server(client.application) as url:
        assert main.run(command.replace("$url", url.removeprefix("http://")).split()) > 0
    assert said in capsys.readouterr().err


def test_job_result_format_follows_the_file_ending() -> None:
    for name, expected in (("a.pdf", "pdf"), ("a.ndjson", "ndjson"), ("a.json", "json"), ("-", "json")):
        assert formats_for(None, Path(name), "json", "ndjson") == (expected,)
    for asked, name in (("ndjson", "a.jsonl"), ("md", "a")):
        assert formats_for((asked,), Path(name), "json", "ndjson") == (asked,)
    with pytest.raises(BadOption, match=r"Use the ending \.json, or --format ndjson"):
        formats_for(("json",), Path("a.jsonl"), "json", "ndjson")
