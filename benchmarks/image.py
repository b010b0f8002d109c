"""Builds and runs the container image: it must read pages as an arbitrary user on a read-only root, and survive faults.

    python benchmarks/image.py                          base, image, pages, and every fault of chaos_faults.py
    python benchmarks/image.py --keep pids memory       the image as it is, and the faults with one of these words
    python benchmarks/image.py --volume /etc/ssl/certs:/etc/ssl/certs:ro     mounted while the image is built

Needs root and Debian's buildah, podman, debootstrap and runc. The base is made of Debian's packages, so no registry is
needed. The service in the container runs as a user without a name, home or capabilities, with the limits that the first
line prints. Each check prints what was read; faults are judged as in chaos_faults.py, with the fake engine. The last
line of stdout is the faults' result as JSON; exit code 1 if a check failed or a fault was not survived.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import chaos_faults
from bench.container import BASE, Limits, build, make_base, run_in_container, serve_container, size_bytes
from bench.machine import print_machine
from bench.processes import Processes, family_of

# Importable because bench.faults adds tests/ and tests/doubles/ to sys.path.
from documents import assemble, stream
from soak import ROOT

LIMITS = Limits()
PAGE = ROOT / "tests" / "pages" / "notice.png"
WORDS = "图书馆今天下午三点关门"


class HasPort(Protocol):
    """A service on a local port."""

    @property
    def port(self) -> int:
        """Its TCP port."""


def chinese_pdf(text: str) -> bytes:
    """A PDF with a line of Chinese in a font that is not embedded."""
    encoded = text.encode("utf-16-be").hex().encode()
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [5 0 R] /Count 1 >>",
        3: b"<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UCS2-H "
        b"/DescendantFonts [4 0 R] >>",
        4: b"<< /Type /Font /Subtype /CIDFontType0 /BaseFont /STSong-Light "
        b"/CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 4 >> >>",
        5: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 80] /Contents 6 0 R "
        b"/Resources << /Font << /F 3 0 R >> >> >>",
        6: stream(b"BT /F 24 Tf 40 30 Td <%s> Tj ET" % encoded),
    }
    return assemble(objects)


def read(service: HasPort, body: bytes) -> str:
    """Read a page; returns its text, or the status of a failed answer."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    try:
        connection.request("POST", "/v1/ocr", body)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    return str(answer["pages"][0]["text"]) if response.status == http.client.OK else f"status {response.status}"


def check(env: dict[str, str], folder: Path) -> list[str]:
    """Start the service, read an image and a PDF, and stop it; returns what was wrong."""
    began_s = time.monotonic()
    with serve_container(env, folder, LIMITS) as service:
        ready_s = time.monotonic() - began_s
        process: Any = service.process
        image, document = read(service, PAGE.read_bytes()), read(service, chinese_pdf(WORDS))
        health = run_in_container(process.name, "ocrsvc", "health", f"http://127.0.0.1:{service.port}").strip()
        identity = run_in_container(process.name, "id").strip()
        held_kb = run_in_container(process.name, "du", "-s", "/tmp", "/dev/shm").split()[::2]
        tasks = sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in family_of(process.pid))
        rss_mb = Processes(process.pid).rss_mb()
        wrong = [f"the image was read as {image!r}"] * (WORDS not in image)
        wrong += [f"the PDF was read as {document!r}"] * (WORDS not in document)
        wrong += [f"ocrsvc health printed {health}"] * ("ready" not in health)
        # For example, that a process which reads PDFs is not sandboxed.
        wrong += [line for line in service.text().splitlines() if "[WARNING]" in line or "[ERROR]" in line]
        stopped_s = time.monotonic()
    code = process.poll()
    wrong += [f"the service ended with {code}"] * (code != 0)
    print(
        f"| {' '.join(f'{name}={value}' for name, value in env.items()) or 'default'} | {identity} | {ready_s:.1f} | "
        f"{rss_mb:.0f} | {tasks} | {held_kb[0]} and {held_kb[1]} | {time.monotonic() - stopped_s:.1f} | "
        f"{'; '.join(wrong) or 'reads both'} |",
        flush=True,
    )
    return wrong


def main() -> int:
    """Build the image, check it, and inject the faults."""
    parser = chaos_faults.arguments()
    parser.description = (__doc__ or "").partition("\n")[0]
    parser.add_argument("--base", default=BASE, help="the image to build on; made with debootstrap if missing")
    parser.add_argument("--volume", action="append", default=[], help="mount during the build, HOST:CONTAINER:ro")
    parser.add_argument("--keep", action="store_true", help="use the existing image")
    parser.add_argument("--no-faults", action="store_true", help="run only the checks")
    args = parser.parse_args()
    print_machine()
    print(f"container: {LIMITS}")
    if not args.keep:
        make_base(args.base)
        print(f"built in {build(args.base, args.volume):.0f} s, {size_bytes() / 1e6:.0f} MB with the base")
    print("| settings | user | ready after s | resident MB | threads | kB in /tmp and /dev/shm | stopped in s | |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    wrong = []
    for env in ({}, {"OCRSVC_ISOLATION": "process"}):
        with tempfile.TemporaryDirectory() as folder:
            wrong += check(env, Path(folder))
    code = 0 if args.no_faults else chaos_faults.run_all(args, serve_container)
    return 1 if wrong else code


if __name__ == "__main__":
    sys.exit(main())
