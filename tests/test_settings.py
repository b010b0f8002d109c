"""Settings are read from variables and a file and checked together; a refusal names the accepted values."""

from pathlib import Path

import pytest
from support import data_of

from ocrsvc.cli.settings import show
from ocrsvc.errors import SettingsError
from ocrsvc.settings.describe import accepted, groups, help_of, variable_of
from ocrsvc.settings.group import Percentage, bytes_of
from ocrsvc.settings.load import RENAMED, read_settings
from ocrsvc.settings.settings import Settings

VALUES = data_of("settings")


def error_of(environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read_settings(environ, file)
    return str(caught.value)


def toml(folder: Path, text: str) -> Path:
    file = folder / "ocrsvc.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_every_setting_has_help_accepted_values_and_one_group() -> None:
    for name in Settings.model_fields:
        assert help_of(name).endswith("."), name
        assert accepted(name), name
    assert [name for group in groups() for name in group.model_fields] == list(Settings.model_fields)


def test_environment_overrides_file_and_file_overrides_default(tmp_path: Path) -> None:
    file = toml(tmp_path, 'queue_size = 5\nworkers = 3\nengine = "fake"\n')
    settings = read_settings({"OCRSVC_CONFIG": str(file), "OCRSVC_WORKERS": "4"})
    assert (settings.workers, settings.queue_size, settings.engine, settings.deadline_s) == (4, 5, "fake", 60.0)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read_settings({"OCRSVC_WORKERS": "", "OCRSVC_CONFIG": ""}).workers is None


@pytest.mark.parametrize(("text", "count"), VALUES["sizes"])
def test_sizes_in_bytes_may_have_a_unit(text: str, count: int) -> None:
    assert read_settings({"OCRSVC_MAX_BODY_BYTES": text}).max_body_bytes == count


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VALUES["refused"].items() for value in values]
)
def test_rejected_value_names_what_is_accepted(name: str, value: str) -> None:
    expected = f"OCRSVC_{name} is {value!r}: accepted is {accepted(name.lower())}."
    assert error_of({f"OCRSVC_{name}": value}) == expected


@pytest.mark.parametrize(
    "value", ["0.0.0.0:80", "localhost:8000", "[::1]:8000", "unix:/run/ocrsvc.sock", "127.0.0.1:0"]
)
def test_addresses_that_gunicorn_can_listen_on_are_accepted(value: str) -> None:
    assert read_settings({"OCRSVC_BIND": value}).bind == value


@pytest.mark.parametrize("name", ["rss_soft_bytes", "rss_hard_bytes", "gpu_soft_bytes", "gpu_hard_bytes"])
@pytest.mark.parametrize(
    ("text", "amount", "count"),
    [
        ("80%", Percentage(80.0), 800),
        ("12.5 %", Percentage(12.5), 125),
        ("100%", Percentage(100.0), 1000),
        ("2kB", 2000, 2000),
        ("0", 0, 0),
    ],
)
def test_memory_limits_are_bytes_or_a_percentage(name: str, text: str, amount: int | Percentage, count: int) -> None:
    found = getattr(read_settings({f"OCRSVC_{name.upper()}": text}), name)
    assert found == amount
    assert bytes_of(found, 1000) == count
    assert bytes_of(None, 1000) is None


def test_percentage_in_the_file_must_be_text(tmp_path: Path) -> None:
    assert read_settings({}, toml(tmp_path, 'gpu_soft_bytes = "80%"')).gpu_soft_bytes == Percentage(80.0)
    assert "accepted is bytes" in error_of({}, toml(tmp_path, "gpu_soft_bytes = { percent = 80.0 }"))


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("OCRSVC_WORKRES", "did you mean OCRSVC_WORKERS?"),
        ("OCRSVC_Engine", "did you mean OCRSVC_ENGINE?"),
        ("OCRSVC_ZZ", "`ocrsvc settings --markdown` lists all settings."),
    ],
)
def test_unknown_variable_suggests_the_nearest_setting(variable: str, hint: str) -> None:
    assert error_of({variable: "2"}) == f"{variable} is '2': unknown setting; {hint}"


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    text = error_of({"OCRSVC_WORKERS": "x", "OCRSVC_QUEU_SIZE": "1"}, toml(tmp_path, 'device = "gpu"\nworkrs = 3\n'))
    assert sorted(line.split(" is ")[0] for line in text.splitlines()) == [
        "OCRSVC_QUEU_SIZE",
        "OCRSVC_WORKERS",
        "device (in ocrsvc.toml)",
        "workrs (in ocrsvc.toml)",
    ]


@pytest.mark.parametrize("line", ["workers = true", "workers = [1]", "deadline_s = {a = 1}", 'engine = ["fake"]'])
def test_a_value_of_the_wrong_type_in_the_file_is_refused(line: str, tmp_path: Path) -> None:
    assert "(in ocrsvc.toml) is " in error_of({}, toml(tmp_path, line))


def test_a_file_that_is_not_toml_or_is_missing_is_refused(tmp_path: Path) -> None:
    assert "is not a TOML file" in error_of({}, toml(tmp_path, "workers: 4"))
    assert "cannot be read: No such file" in error_of({"OCRSVC_CONFIG": str(tmp_path / "none.toml")})


def test_tables_and_lists_are_read_and_omitted_pixel_limits_keep_their_default(tmp_path: Path) -> None:
    given = read_settings({"OCRSVC_FORMAT_MAX_PIXELS": "gif=1000, webp=2000"}).format_max_pixels
    assert (given["gif"], given["webp"], given["png"]) == (1000, 2000, read_settings({}).format_max_pixels["png"])
    settings = read_settings({}, toml(tmp_path, 'fake_fault_on = ["a", "b"]\n[format_max_pixels]\ngif = 1000\n'))
    assert (settings.fake_fault_on, settings.format_max_pixels["gif"]) == (("a", "b"), 1000)


def test_passwords_in_addresses_are_never_shown() -> None:
    address = "redis://reader:secret@cache:6379/0"
    assert show(address) == "redis://reader:***@cache:6379/0"
    assert show("redis://:secret@cache") == "redis://:***@cache"
    assert show("redis://:se/cr@et@cache/0") == "redis://:***@cache/0"
    assert show("redis://cache:1/0?db=1&password=se@cret&x=1") == "redis://cache:1/0?db=1&password=***&x=1"
    wrong = {
        "OCRSVC_CACHE_URLS": address,
        "OCRSVC_KEYS": "redis://reader:sec/secret@secret@cache:6379/0",
        "OCRSVC_APIKEY": "ocr_0123456789ab_secret-secret",
    }
    with pytest.raises(SettingsError) as refusal:
        read_settings(wrong)
    assert all(name in str(refusal.value) for name in wrong)
    assert "sec" not in str(refusal.value)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_name_of_a_setting_is_accepted_with_a_warning(old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    value = "none" if old == "dialects" else "7"
    assert read_settings({variable_of(old): value}) == read_settings({variable_of(new): value})
    [warning] = caplog.messages
    assert warning.startswith(f"{variable_of(old)} is now called {variable_of(new)}; ")


def test_old_and_new_name_of_a_setting_together_stop_the_start() -> None:
    environ = {"OCRSVC_TASKS_S": "7", "OCRSVC_JOBS_S": "8"}
    assert "OCRSVC_TASKS_S is the old name of OCRSVC_JOBS_S" in error_of(environ)
