"""Encrypted models: that nothing of them is plain in a file, and what they cost at the start.

    python benchmarks/models_encryption.py [--starts 5]

A copy of the built-in model, whose weights differ from the wheel's in their last bits, is served once plain and once
encrypted, by the engine ppocr, started in turns: processor time and seconds until it is ready, with an empty model
cache and with a full one. Then it is served encrypted under strace, in both isolations: everything that any of its
processes writes to a file, every file that one has mapped or open for writing, and what is in its folders afterwards is
searched for the bytes of the plain model, and of what the plain service has cached of it; the bits are random, so that
a file that is older than the copy holds none. That the search finds them is shown with that cache. Exit code 1 where it
finds any in the encrypted service, or where texts differ. Needs strace.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import onnx
from bench.machine import print_machine
from bench.plain_bytes import FOUND_BYTES, PlainBytes
from bench.processes import Processes
from bench.results import write_result
from bench.service import ROOT, ask, end, form_with_file, free_port, wait_until_ready
from bench.written_files import files_in_use, read_unseen, read_writes, strace_command

from ocrsvc.engines.model.encryption import ModelKey, new_key
from ocrsvc.engines.model.version import built_in_model
from ocrsvc.models.importers.source_files import NewModel
from ocrsvc.models.importers.write_version import encrypt_model, write_version
from ocrsvc.models.repository import ModelRepository
from ocrsvc.models.state import StateStore, Verdict

NAME: Final = "copy"
PAGE: Final = ROOT / "tests" / "pages" / "notice.png"
_WEIGHTS_BYTES: Final = 1 << 12
_ISOLATIONS: Final = ("thread", "process")
# What the kernel's clock for files is behind.
_CLOCK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where one service has its files: the repository, its state, the model cache, a home and temporary files."""

    folder: Path

    @property
    def models(self) -> Path:
        """The repository."""
        return self.folder / "models"

    @property
    def cache(self) -> Path:
        """The model cache."""
        return self.folder / "cache"

    def environ(self, isolation: str, key: Path | None) -> dict[str, str]:
        """The environment of a service of one worker; `key` is a file with its key."""
        given = {
            "HOME": os.fspath(self.folder),
            "TMPDIR": os.fspath(self.folder),
            "XDG_CACHE_HOME": os.fspath(self.folder / "home"),
            "OCRSVC_MODELS": os.fspath(self.models),
            "OCRSVC_MODELS_STATE": os.fspath(self.folder / "state"),
            "OCRSVC_MODEL": NAME,
            "OCRSVC_MODEL_CACHE": os.fspath(self.cache),
            "OCRSVC_ISOLATION": isolation,
            "OCRSVC_DEVICE": "cpu",
            "OCRSVC_WORKERS": "1",
        }
        return given if key is None else {**given, "OCRSVC_MODELS_KEY_COMMAND": f"cat {key}"}


def prepare(folder: Path, key: ModelKey | None) -> Place:
    """A repository with the copy, plain or encrypted, whose proof is taken as made."""
    place = Place(folder)
    place.models.mkdir(parents=True)
    made = ModelRepository(folder.parent / "made").open(NAME, 1)
    whole = NewModel(made.description, {name: made.read(name) for name in made.digests})
    write_version(whole if key is None else encrypt_model(made, key), place.models, NAME, 1)
    digest = ModelRepository(place.models, key).open(NAME, 1).digest
    StateStore(folder / "state").record_verdict(digest, Verdict(accepted=True))
    return place


def make_copy(folder: Path) -> None:
    """The built-in model with other last bits in its weights, in a repository of its own."""
    built_in, random = built_in_model(), np.random.default_rng()
    files = {name: _with_other_bits(built_in.read(name), random) for name in built_in.description.files}
    write_version(NewModel(built_in.description, files), folder, NAME, 1)


def _with_other_bits(model: bytes, random: np.random.Generator) -> bytes:
    proto = onnx.load_from_string(model)
    for tensor in proto.graph.initializer:
        # What is small may be a scale or a size, which must be exact.
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.raw_data) >= _WEIGHTS_BYTES:
            bits = np.frombuffer(tensor.raw_data, np.uint32)
            noise = random.integers(0, 1 << 8, bits.shape, np.uint32)
            tensor.raw_data = np.where(bits & 0x7FFFFFFF, bits ^ noise, bits).astype(np.uint32).tobytes()
    changed: bytes = proto.SerializeToString()
    return changed


@contextlib.contextmanager
def serving(environ: Mapping[str, str], before: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """A service that is ready: its URL and its arbiter's process id. `before` is put before its command."""
    url = f"http://127.0.0.1:{free_port()}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCRSVC_")}
    chosen = {**inherited, **environ, "OCRSVC_BIND": url.removeprefix("http://"), "PYTHONPATH": os.fspath(ROOT)}
    command = [*before, sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "wsgi:app"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, cwd=ROOT, env=chosen, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(url, server)
            yield url, server.pid
        except SystemExit:
            log.seek(0)
            print(log.read().decode("utf-8", "replace")[-3000:])
            raise
        finally:
            end(server)


def read_page(url: str) -> str:
    """What the service reads on a page; exits unless it is answered."""
    body, kind = form_with_file(PAGE.read_bytes(), PAGE.name, "image/png")
    answer = ask(url, "POST", "/v1/ocr?format=text", body, kind)
    if answer.status != 200:
        sys.exit(f"The page is answered with {answer.status}: {answer.text[:300]}")
    return answer.text


def compare_starts(places: Mapping[str, tuple[Place, Path | None]], starts: int) -> list[dict[str, object]]:
    """A row for each service: its first start, and the median of those with a full cache, which take turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
    texts = set()
    for number in range(starts + 1):
        for name, (place, key) in list(places.items())[:: -1 if number % 2 else 1]:
            began_s = time.monotonic()
            with serving(place.environ("thread", key)) as (url, pid):
                spent[name].append((Processes(pid).cpu_s(), time.monotonic() - began_s))
                texts.add(read_page(url))
    if len(texts) != 1:
        sys.exit("The encrypted model reads otherwise than the plain one.")
    rows: list[dict[str, object]] = []
    for name, times in spent.items():
        first, later = times[0], [median(column) for column in zip(*times[1:], strict=True)]
        rows.append({"model": name, "first_cpu_s": first[0], "first_s": first[1], "cpu_s": later[0], "s": later[1]})
        print(
            f"{name}: {first[0]:.2f} s of CPU until ready with an empty cache ({first[1]:.2f} s), "
            f"then {later[0]:.2f} s ({later[1]:.2f} s), the median of {starts}"
        )
    return rows


def watch(place: Place, isolation: str, key: Path, plain: PlainBytes, since_s: float) -> dict[str, object]:
    """Serve under strace with an empty cache, then a full one; what was searched, and where something was found."""
    written_bytes, found, unseen, in_use = 0, set[str](), set[str](), set[str]()
    for run in ("empty", "full"):
        log = place.folder / f"strace-{isolation}-{run}"
        with serving(place.environ(isolation, key), strace_command(log)) as (url, pid):
            read_page(url)
            in_use |= set(files_in_use(pid))
        written = read_writes(log)
        written_bytes += sum(map(len, written.values()))
        found |= {path for path, data in written.items() if plain.count(data)}
        unseen |= set(read_unseen(log))
        log.unlink()
    left = {os.fspath(file) for file in place.folder.rglob("*") if file.is_file()}
    searched = sorted(in_use | unseen | left)
    found |= {path for path in searched if plain.count(_content(Path(path), since_s))}
    print(
        f"{isolation}: {written_bytes / 1e6:.1f} MB written to files, {len(searched)} files that were mapped, open for "
        f"writing or left: {'nothing plain' if not found else 'PLAIN BYTES in ' + ', '.join(sorted(found))}"
    )
    return {"isolation": isolation, "written_bytes": written_bytes, "files": len(searched), "found": sorted(found)}


def _content(file: Path, since_s: float) -> bytes:
    """What a file holds that was changed since a time; nothing of one that was there before the copy was made."""
    with contextlib.suppress(OSError):
        return file.read_bytes() if file.stat().st_ctime >= since_s else b""
    return b""


def check_search(place: Place, plain: PlainBytes) -> None:
    """The plain service's own cache and repository must be found. Exits if they are not."""
    for folder in (place.models, place.cache):
        counts = [plain.count(file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
        print(f"The search finds {sum(counts)} words of the model in the plain service's {folder.name}.")
        if not sum(counts):
            sys.exit("The search does not find what is there.")


def main() -> int:
    """Measure, and search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, help="of each service, with a full model cache")
    parser.add_argument("--out", type=Path, help="file for the figures")
    args = parser.parse_args()
    print_machine()
    key = new_key()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key_file = folder / "key"
        key_file.write_text(key.expose())
        began_s = time.time() - _CLOCK_S
        make_copy(folder / "made")
        plain = prepare(folder / "plain", None)
        places = {"plain": (plain, None), "encrypted": (prepare(folder / "encrypted", key), key_file)}
        rows = compare_starts(places, args.starts)
        contents = [
            file.read_bytes() for home in (plain.models, plain.cache) for file in home.rglob("*") if file.is_file()
        ]
        search = PlainBytes(contents)
        check_search(plain, search)
        watched = [watch(prepare(folder / one, key), one, key_file, search, began_s) for one in _ISOLATIONS]
    write_result("models_encryption", {"starts": rows, "watched": watched, "found_bytes": FOUND_BYTES}, args.out)
    return int(any(row["found"] for row in watched))


if __name__ == "__main__":
    sys.exit(main())
