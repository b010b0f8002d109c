"""Checks that encrypted models never reach a file in plain form, and measures their cost at the start.

    python benchmarks/models_encryption.py [--starts 5]

A copy of the built-in model, with random last bits in its weights, is served by the engine ppocr plain and encrypted in
turn: processor time and seconds until ready, with an empty and with a full model cache. Then it is served encrypted
under strace, in both isolations. Everything that its processes write to files, every file that they map or hold open
for writing, and the files left in its folders are searched for the bytes of the plain model and of the plain service's
cache. The bits are random, so files older than the copy contain none of them. A search of the plain service's cache
shows that the search works. Exit code 1 if the encrypted service leaks plain bytes; exits as well if texts differ.
Needs strace.
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
# Possible delay of the kernel's clock for file times.
_CLOCK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ServiceFolder:
    """The folder of one service: its repository, state, model cache, home and temporary files."""

    folder: Path

    @property
    def models(self) -> Path:
        """The model repository."""
        return self.folder / "models"

    @property
    def cache(self) -> Path:
        """The model cache."""
        return self.folder / "cache"

    def environ(self, isolation: str, key: Path | None) -> dict[str, str]:
        """Environment of a service with one worker; `key` is a file with its key."""
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


def prepare(folder: Path, key: ModelKey | None) -> ServiceFolder:
    """Make a repository with the plain or encrypted copy, recorded as accepted."""
    place = ServiceFolder(folder)
    place.models.mkdir(parents=True)
    made = ModelRepository(folder.parent / "made").open(NAME, 1)
    whole = NewModel(made.description, {name: made.read(name) for name in made.digests})
    write_version(whole if key is None else encrypt_model(made, key), place.models, NAME, 1)
    digest = ModelRepository(place.models, key).open(NAME, 1).digest
    StateStore(folder / "state").record_verdict(digest, Verdict(accepted=True))
    return place


def make_copy(folder: Path) -> None:
    """Write the built-in model with random last bits in its weights to a repository."""
    built_in, random = built_in_model(), np.random.default_rng()
    files = {name: _with_other_bits(built_in.read(name), random) for name in built_in.description.files}
    write_version(NewModel(built_in.description, files), folder, NAME, 1)


def _with_other_bits(model: bytes, random: np.random.Generator) -> bytes:
    proto = onnx.load_from_string(model)
    for tensor in proto.graph.initializer:
        # Small tensors may be scales or sizes, which must stay exact.
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.raw_data) >= _WEIGHTS_BYTES:
            bits = np.frombuffer(tensor.raw_data, np.uint32)
            noise = random.integers(0, 1 << 8, bits.shape, np.uint32)
            tensor.raw_data = np.where(bits & 0x7FFFFFFF, bits ^ noise, bits).astype(np.uint32).tobytes()
    changed: bytes = proto.SerializeToString()
    return changed


@contextlib.contextmanager
def serving(environ: Mapping[str, str], before: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Start a service, and yield its URL and its arbiter's process id; `before` is a prefix of its command."""
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
    """The text of the page; exits if the service does not answer with 200."""
    body, kind = form_with_file(PAGE.read_bytes(), PAGE.name, "image/png")
    answer = ask(url, "POST", "/v1/ocr?format=text", body, kind)
    if answer.status != 200:
        sys.exit(f"The page was answered with {answer.status}: {answer.text[:300]}")
    return answer.text


def compare_starts(places: Mapping[str, tuple[ServiceFolder, Path | None]], starts: int) -> list[dict[str, object]]:
    """A row per service: the first start, and the median of the starts with a full cache, which alternate."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
    texts = set()
    for number in range(starts + 1):
        for name, (place, key) in list(places.items())[:: -1 if number % 2 else 1]:
            began_s = time.monotonic()
            with serving(place.environ("thread", key)) as (url, pid):
                spent[name].append((Processes(pid).cpu_s(), time.monotonic() - began_s))
                texts.add(read_page(url))
    if len(texts) != 1:
        sys.exit("The encrypted and the plain model read different texts.")
    rows: list[dict[str, object]] = []
    for name, times in spent.items():
        first, later = times[0], [median(column) for column in zip(*times[1:], strict=True)]
        rows.append({"model": name, "first_cpu_s": first[0], "first_s": first[1], "cpu_s": later[0], "s": later[1]})
        print(
            f"{name}: {first[0]:.2f} s of CPU until ready with an empty cache ({first[1]:.2f} s), "
            f"then {later[0]:.2f} s ({later[1]:.2f} s), the median of {starts}"
        )
    return rows


def watch(place: ServiceFolder, isolation: str, key: Path, plain: PlainBytes, since_s: float) -> dict[str, object]:
    """Serve under strace with an empty and a full cache; returns what was searched and where plain bytes were found."""
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
        f"writing or left: {'no plain bytes' if not found else 'PLAIN BYTES in ' + ', '.join(sorted(found))}"
    )
    return {"isolation": isolation, "written_bytes": written_bytes, "files": len(searched), "found": sorted(found)}


def _content(file: Path, since_s: float) -> bytes:
    """Content of a file changed since `since_s`; empty for older files, which cannot contain the copy."""
    with contextlib.suppress(OSError):
        return file.read_bytes() if file.stat().st_ctime >= since_s else b""
    return b""


def check_search(place: ServiceFolder, plain: PlainBytes) -> None:
    """Exit unless the search finds the model in the plain service's repository and cache."""
    for folder in (place.models, place.cache):
        counts = [plain.count(file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
        print(f"The search finds {sum(counts)} words of the model in the plain service's {folder.name}.")
        if not sum(counts):
            sys.exit("The search does not find the plain model.")


def main() -> int:
    """Run the benchmark; returns 1 if plain bytes were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, help="starts per service with a full model cache")
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
