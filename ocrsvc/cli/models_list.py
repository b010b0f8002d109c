"""`ocrsvc models list`: every model and version of the repository, and what is wrong with those that cannot be used."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.cli.table import table
from ocrsvc.model_repository.key_source import read_model_key
from ocrsvc.model_repository.repository import BadVersion, ModelRepository, Scan
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.settings.settings import Settings

HELP: Final = "list the models and their versions"
_COLUMNS: Final = ("model", "state", "tier", "languages", "size", "engine", "licence", "source")
_MEGABYTE: Final = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc models list`."""
    parser.add_argument("--json", action="store_true", help="as JSON, one array")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print what there is. Raises OperatorError."""
    repository = ModelRepository(settings.models, read_model_key(settings))
    scan = repository.scan()
    entries = sorted(_entries(scan, repository.incomplete()), key=lambda entry: (entry["name"], entry["version"]))
    if args.json:
        print(orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode())
        return 0
    for line in table(_COLUMNS, [_row(entry) for entry in entries]):
        print(line)
    for entry in entries:
        if entry["reason"]:
            print(f"{entry['name']}/{entry['version']}: {entry['reason']}")
    return 0


def _entries(scan: Scan, incomplete: Sequence[tuple[str, int]]) -> Iterator[Mapping[str, Any]]:
    yield from map(_usable, scan.versions)
    yield from map(_bad, scan.bad)
    for name, number in incomplete:
        yield _entry(name, number, "copying", "It has no SHA256SUMS yet: it is still being copied.")


def _usable(version: ModelVersion) -> Mapping[str, Any]:
    description = version.description
    return _entry(version.name, version.number, "available") | {
        "title": description.title,
        "tier": description.tier,
        "languages": list(description.languages),
        "size_bytes": size_of(version),
        "engine": description.engine,
        "licence": description.licence,
        "source": description.source,
        "digest": version.digest,
    }


def _bad(version: BadVersion) -> Mapping[str, Any]:
    return _entry(version.name, version.number, "bad", version.reason) | {"digest": version.digest}


def _entry(name: str, number: int, state: str, reason: str = "") -> dict[str, Any]:
    return {"name": name, "version": number, "state": state, "reason": reason}


def size_of(version: ModelVersion) -> int:
    """Bytes of its files; of the built-in model those that it names, since its wheel holds others, too."""
    names = list(version.digests) if version.digests else list(version.description.files)
    return sum(_size(version.folder / name) for name in names)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _row(entry: Mapping[str, Any]) -> Sequence[str]:
    size = entry.get("size_bytes")
    return (
        f"{entry['name']}/{entry['version']}",
        entry["state"],
        entry.get("tier") or "-",
        _shortened(entry.get("languages", ())),
        "-" if size is None else f"{size / _MEGABYTE:.1f} MB",
        entry.get("engine") or "-",
        entry.get("licence") or "-",
        entry.get("source") or "-",
    )


def _shortened(languages: Sequence[str], most: int = 5) -> str:
    """The first few, and how many more there are."""
    more = [f"+{len(languages) - most}"] if len(languages) > most else []
    return " ".join([*languages[:most], *more]) or "-"
