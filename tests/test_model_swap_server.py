"""A service under requests whose models are swapped: no request fails, and each is read by the version it names."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from image_support import png
from models_support import make_fake
from support import Server, repeating, run_server, wait_until

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"
PAUSE_S = 0.02
PAGE = png(16, 16, shade=200, suffix=".bmp")


def settings(folder: Path, **more: str) -> dict[str, str]:
    """Of a service with a repository in the folder."""
    return {
        "OCRSVC_MODELS": str(folder / "models"),
        "OCRSVC_MODELS_STATE": str(folder / "state"),
        "OCRSVC_MODEL": "fake",
        "OCRSVC_MODELS_POLL_S": "0.1",
        "OCRSVC_WORKERS": "2",
        **more,
    }


def add(folder: Path, number: int, text: str = "") -> None:
    """A version that says which it is."""
    make_fake(folder / "models", number, fake_text=text or f"{WORDS} v{number}")


def answer_of(url: str) -> Any:
    """What the page is answered with."""
    request = urllib.request.Request(f"{url}/v1/ocr", PAGE, {"Content-Type": "image/bmp"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def read(url: str) -> tuple[str, str]:
    """The version that has answered, and its last line."""
    answer = answer_of(url)
    return answer["engine"]["version"], answer["pages"][0]["lines"][-1]["text"]


@contextmanager
def asking(server: Server, clients: int) -> Iterator[Counter[tuple[str, str]]]:
    """Clients that ask over and over; what they were answered, or what failed."""
    seen: Counter[tuple[str, str]] = Counter()
    url = server.url

    def ask() -> None:
        try:
            answer = read(url)
        except Exception as error:  # noqa: BLE001  whatever fails is a failed request
            answer = ("failed", repr(error))
        seen[answer] += 1
        threading.Event().wait(PAUSE_S)

    with repeating(ask, clients):
        yield seen


def check(seen: Counter[tuple[str, str]], versions: set[str]) -> None:
    """Each answer has the text of its version, and is of one of these."""
    assert set(seen) <= {(version, f"{WORDS} v{version}") for version in versions}


def test_versions_are_swapped_under_requests_and_bad_ones_never_answer(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with run_server(settings(tmp_path)) as server:
        server.wait_for("READY in", count=2)
        with asking(server, 4) as seen:
            add(tmp_path, 2)
            server.wait_for("SERVING fake/2 in place of fake/1", count=2)
            add(tmp_path, 3, "something else")
            server.wait_for(r"REFUSED fake/3 \(text\): It reads 0\.1. of the words of fake/2")
            add(tmp_path, 4)
            server.wait_for("SERVING fake/4 in place of fake/2", count=2)
            server.wait_for("UNLOADED the model fake/2: retired", count=2)
        assert read(server.url)[0] == "4"
        check(seen, {"1", "2", "4"})
        wait_until(lambda: server.metric('ocrsvc_model_refusals_total{reason="text"}') == 1)
        wait_until(lambda: server.metric("ocrsvc_model_swaps_total") == 4)
        wait_until(lambda: server.metric("ocrsvc_model_refused_versions") == 1)


def test_versions_are_swapped_in_child_processes_too(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with run_server(settings(tmp_path, OCRSVC_ISOLATION="process", OCRSVC_WORKERS="1")) as server:
        with asking(server, 2) as seen:
            add(tmp_path, 2)
            server.wait_for("SERVING fake/2 in place of fake/1")
            server.wait_for("UNLOADED the model fake/1: retired")
        assert read(server.url)[0] == "2"
        check(seen, {"1", "2"})


def test_swap_without_room_for_both_closes_the_old_version_first_and_fails_no_request(tmp_path: Path) -> None:
    large: dict[str, Any] = {"fake_model_bytes": 80 << 20, "fake_latency_s": 0.05}
    make_fake(tmp_path / "models", 1, fake_text=f"{WORDS} v1", **large)
    with run_server(settings(tmp_path, OCRSVC_MODELS_MEMORY="130MiB", OCRSVC_WORKERS="1")) as server:
        with asking(server, 4) as seen:
            make_fake(tmp_path / "models", 2, fake_text=f"{WORDS} v2", **large)
            server.wait_for("SERVING fake/2 in place of fake/1")
            wait_until(lambda: any(version == "2" for version, _ in seen))
        assert server.log.index("UNLOADED the model fake/1") < server.log.index("LOADED the model fake/2")
        check(seen, {"1", "2"})
