"""Other ways to serve OCR compared with this one: the same pages, the same machine, the same run.

    python benchmarks/peers.py [--shared ../shared] [--every 12] [--clients 1,4,20] [--rounds 2] [--only NAME,NAME]

Beside this service: rapidocr_api, RapidOCR behind LitServe and behind BentoML (benchmarks/peers/), each with its own
defaults in an environment of its own under .bench/peers (made here, once); RapidOCR itself in a process of its own,
which reads one page at a time; Tesseract 5 as Debian packs it, one process a page; and, if `ocrsvc optimize` was run,
this service with its recognizer in eight bits. All servers stand ready for the whole run; the systems take turns, round
by round, and each round begins with another one. Every page is read once a round. Needs network access for the first
run.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.corpus import ALL, Corpus
from bench.machine import print_machine
from bench.processes import Processes
from bench.results import write_result
from bench.service import ROOT, end, form_with_file, free_port, started

ENVIRONMENTS: Final = ROOT / ".bench" / "peers"
SERVERS: Final = ROOT / "benchmarks" / "peers"
PACKAGES: Final = {
    "rapidocr_api": ("rapidocr_api==0.2.0", "rapidocr==3.10.0", "onnxruntime"),
    "litserve": ("litserve", "rapidocr==3.10.0", "onnxruntime"),
    "bentoml": ("bentoml", "rapidocr==3.10.0", "onnxruntime"),
}
OURS: Final = {"ocrsvc": "fp32", "ocrsvc_int8": "int8"}
START_LIMIT_S: Final = 180.0
PAGE_LIMIT_S: Final = 600.0
WARM_UP_PAGES: Final = 2
WATCH_S: Final = 0.2

Read = Callable[[bytes], str]


@dataclass(frozen=True)
class Peer:
    """One way to serve: its name, how it reads one page, and the process whose tree is watched."""

    name: str
    read: Read
    processes: Processes


class TesseractProcesses(Processes):
    """The processes that run now for single pages, and the time of those that have ended."""

    def __init__(self) -> None:
        super().__init__(os.getpid())

    def cpu_s(self) -> float:
        """Of the children that were waited for; the servers of the other systems still run."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def rss_mb(self) -> float:
        """Of all that run now."""
        return sum(Processes(pid).rss_mb() for pid in self.workers() if self._is_tesseract(pid))

    def _is_tesseract(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text() == "tesseract\n"
        return False


@dataclass
class Load:
    """What one system showed under one load, over all its rounds."""

    latencies_s: list[float] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def figures(self, corpus: Corpus) -> dict[str, float]:
        """Ready to become JSON; the texts are those of the last round."""
        ordered = sorted(self.latencies_s)

        def quantile(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

        tally = corpus.tally(self.texts)[ALL]
        return {
            "pages_per_s": round(len(ordered) / self.wall_s, 3),
            "mean_s": round(sum(ordered) / len(ordered), 3),
            **{f"p{round(share * 100)}_s": quantile(share) for share in (0.5, 0.95, 0.99)},
            "cpu_s_per_page": round(self.cpu_s / len(ordered), 3),
            "peak_rss_mb": round(self.peak_mb),
            "f1": round(tally.f1, 4),
            "failed": tally.failed,
        }


def post(port: int, path: str, body: bytes, content_type: str) -> Any:
    """The JSON that the peer answers; raises RuntimeError for any status but 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PAGE_LIMIT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": content_type})
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {data[:200]!r}")
    return json.loads(data)


def form(data: bytes, name: str) -> tuple[bytes, str]:
    """A multipart form with the page under a name."""
    body, content_type = form_with_file(data, "page", "application/octet-stream")
    return body.replace(b'name="file"', f'name="{name}"'.encode(), 1), content_type


def read_ocrsvc(port: int, data: bytes) -> str:
    """Our own answer."""
    answer = post(port, "/v1/ocr", *form(data, "file"))
    return "\n".join(line["text"] for page in answer["pages"] for line in page["lines"])


def read_rapidocr_api(port: int, data: bytes) -> str:
    """Keys are the numbers of the lines."""
    answer = post(port, "/ocr", *form(data, "image_file"))
    return "\n".join(answer[key]["rec_txt"] for key in sorted(answer, key=int))


def read_litserve(port: int, data: bytes) -> str:
    """Base64 in JSON, as its documentation does it."""
    body = json.dumps({"image": base64.b64encode(data).decode()}).encode()
    return str(post(port, "/predict", body, "application/json")["text"])


def read_bentoml(port: int, data: bytes) -> str:
    """A multipart file."""
    return str(post(port, "/read", *form(data, "image"))["text"])


def read_tesseract(data: bytes) -> str:
    """One process a page, one thread each: more threads only fight for the cores."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = ["tesseract", file.name, "-", "-l", "eng+chi_sim"]
        done = subprocess.run(command, capture_output=True, env=os.environ | {"OMP_THREAD_LIMIT": "1"}, check=True)
    return done.stdout.decode("utf-8", "replace")


def environment(name: str) -> Path:
    """The folder with the programs of a peer's environment, which is made if it is not there."""
    folder = ENVIRONMENTS / name
    if not (folder / ".made").exists():
        print(f"making the environment of {name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES[name]], check=True)
        (folder / ".made").touch()
    return folder / "bin"


def command_of(name: str, port: int) -> list[str]:
    """How the peer is started, as its documentation says."""
    programs = environment(name)
    return {
        "rapidocr_api": [f"{programs}/rapidocr_api", "-ip", "127.0.0.1", "-p", str(port)],
        "litserve": [f"{programs}/python", str(SERVERS / "serve_litserve.py"), str(port)],
        "bentoml": [
            *(f"{programs}/bentoml", "serve", "serve_bentoml:Ocr"),
            *("--working-dir", str(SERVERS), "--host", "127.0.0.1", "--port", str(port)),
        ],
    }[name]


def run_rapidocr(wire: multiprocessing.connection.Connection) -> None:
    """Read pages until the wire ends. Runs in a process of its own."""
    from rapidocr import RapidOCR

    logging.disable(logging.WARNING)
    engine = RapidOCR()
    with contextlib.suppress(EOFError):
        while True:
            wire.send("\n".join(getattr(engine(wire.recv_bytes()), "txts", None) or ()))


@contextlib.contextmanager
def rapidocr_in_process() -> Iterator[Peer]:
    """RapidOCR without a server."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_rapidocr, args=(there,))
    process.start()
    there.close()
    turn = threading.Lock()

    def read(data: bytes) -> str:
        with turn:
            here.send_bytes(data)
            return str(here.recv())

    try:
        yield Peer("rapidocr", read, Processes(process.pid))
    finally:
        here.close()
        process.join()


@contextlib.contextmanager
def serving(name: str) -> Iterator[Peer]:
    """A peer whose server is ready."""
    if name in OURS:
        with started({"OCRSVC_DEVICE": "cpu", "OCRSVC_PRECISION": OURS[name]}) as service:
            yield Peer(name, lambda data: read_ocrsvc(service.port, data), service.processes)
        return
    if name == "tesseract":
        yield Peer(name, read_tesseract, TesseractProcesses())
        return
    if name == "rapidocr":
        with rapidocr_in_process() as peer:
            yield peer
        return
    port = free_port()
    read = {"rapidocr_api": read_rapidocr_api, "litserve": read_litserve, "bentoml": read_bentoml}[name]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command_of(name, port), stdout=log, stderr=log, start_new_session=True) as server,
    ):
        try:
            yield Peer(name, lambda data: read(port, data), Processes(server.pid))
        finally:
            end(server)
            # LitServe's own processes outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def warm_up(peer: Peer, page: bytes) -> None:
    """Wait until the peer answers, and a little longer."""
    until_s = time.monotonic() + START_LIMIT_S
    answered = 0
    while answered < WARM_UP_PAGES:
        try:
            peer.read(page)
            answered += 1
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            if time.monotonic() > until_s:
                sys.exit(f"{peer.name} did not become ready: {error!r}")
            time.sleep(0.5)


def run(peer: Peer, pages: Sequence[bytes], clients: int, load: Load) -> None:
    """Read every page once with so many clients, and add what was seen to `load`."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(pages)):
        todo.put(number)
    texts: list[str | None] = [None] * len(pages)
    latencies_s: list[float] = []

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = todo.get_nowait()
                began_s = time.perf_counter()
                try:
                    texts[number] = peer.read(pages[number])
                except Exception as error:  # noqa: BLE001  a page that fails is counted as one, and the rest goes on
                    print(f"FAILED {peer.name}: {error!r}"[:200], flush=True)
                latencies_s.append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    with watched_peak(peer.processes) as peak:
        cpu_before_s, began_s = peer.processes.cpu_s(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        load.wall_s += time.perf_counter() - began_s
        load.cpu_s += peer.processes.cpu_s() - cpu_before_s
    load.peak_mb = max(load.peak_mb, *peak)
    load.latencies_s += latencies_s
    load.texts = texts


@contextlib.contextmanager
def watched_peak(processes: Processes) -> Iterator[list[float]]:
    """The highest sum of resident memory seen inside the block, in MB: processes that end within it count too."""
    seen = [processes.rss_mb()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            seen.append(processes.rss_mb())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def measure(
    peers: Sequence[Peer], pages: Sequence[bytes], clients: Sequence[int], rounds: int
) -> Mapping[tuple[str, int], Load]:
    """All loads of all systems, in turns."""
    loads = {(peer.name, count): Load() for peer in peers for count in clients}
    for count in clients:
        for turn in range(rounds):
            first = turn % len(peers)
            for peer in (*peers[first:], *peers[:first]):
                run(peer, pages, count, loads[peer.name, count])
                done = loads[peer.name, count]
                pace = len(done.latencies_s) / done.wall_s
                print(f"{count:3} clients, round {turn + 1}: {peer.name:13} {pace:.2f} pages/s", flush=True)
    return loads


def can_run(name: str) -> bool:
    """What is missing, or nothing where it is all there."""
    if name == "tesseract" and not shutil.which(name):
        print("left out: tesseract is not installed")
        return False
    if name == "ocrsvc_int8" and not has_eight_bits():
        print("left out: ocrsvc_int8, because `ocrsvc optimize` has kept no model in eight bits here")
        return False
    return True


def has_eight_bits() -> bool:
    """Whether the folder of optimised models has one in eight bits."""
    from ocrsvc.engines.ppocr.runtime.model_cache import default_folder

    folder = os.environ.get("OCRSVC_MODEL_CACHE") or default_folder()
    return folder is not None and any(Path(folder).glob("int8-*"))


def print_table(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """One row for each system and load."""
    columns = ("pages_per_s", "mean_s", "p50_s", "p95_s", "p99_s", "cpu_s_per_page", "peak_rss_mb", "f1", "failed")
    print(f"{'system':14}{'clients':>8}" + "".join(f"{column:>16}" for column in columns))
    for name, by_clients in figures.items():
        for count, row in by_clients.items():
            print(f"{name:14}{count:>8}" + "".join(f"{row[column]:>16}" for column in columns))


def main() -> int:
    """Run once, print, write."""
    names = ("ocrsvc", "rapidocr", "rapidocr_api", "litserve", "bentoml", "tesseract", "ocrsvc_int8")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="holds corpus/ and score.py")
    parser.add_argument("--every", type=int, default=12, help="only every n-th page")
    parser.add_argument("--clients", default="1,4,20", help="loads to try")
    parser.add_argument("--rounds", type=int, default=2, help="how often each page is read under each load")
    parser.add_argument("--only", default=",".join(names), help="systems to compare")
    parser.add_argument("--out", type=Path, help="the JSON file; results/peers.json if left out")
    asked = parser.parse_args()
    chosen = [name for name in asked.only.split(",") if can_run(name)]
    clients = [int(count) for count in asked.clients.split(",")]
    corpus = Corpus(asked.shared, every=asked.every)
    pages = [page.file.read_bytes() for page in corpus.pages]
    print_machine()
    print(f"load: {len(pages)} pages, {asked.rounds} rounds, {asked.clients} clients; systems: {', '.join(chosen)}")
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(serving(name)) for name in chosen]
        for peer in peers:
            warm_up(peer, pages[0])
        loads = measure(peers, pages, clients, asked.rounds)
    figures = {name: {str(count): loads[name, count].figures(corpus) for count in clients} for name in chosen}
    print_table(figures)
    write_result("peers", {"pages": len(pages), "rounds": asked.rounds, "systems": figures}, asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
