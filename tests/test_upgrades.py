"""Settings of 0.1.0 still start the service, or say what replaced them; under load the package is replaced."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from proxies import CLIENTS, ENV, PROXIES, asking, proxied, texts_of
from support import ROOT, wait_until
from upgrade_support import Changes, HeldSocket, replace_package, serving, version_of, write_package

from ocrsvc.errors import SettingsError
from ocrsvc.settings.load import REPLACED, read_settings

BYTES = ("4096", "64MiB", "1GB", "0")
SHARE = (*BYTES, "80%")
ON_OFF = ("true", "false")
FORMATS_THEN = "jpeg=1, png=2, bmp=3, pnm=4, tiff=5, webp=6, gif=7, pdf=8"
DIALECTS_THEN = (
    "trwebocr, trwebocr_cpp, kserve_v2, tfserving, kserve_v1, rapidocr_api, paddlex, paddlehub, paddle_serving, "
    "umi_ocr, ocr_space, turboocr"
)
# Every setting of 0.1.0, with values that its documentation said are accepted.
SETTINGS: Mapping[str, Sequence[str]] = {
    "ENGINE": ("ppocr", "tr", "tr_crnn", "fake"),
    "DEVICE": ("cpu", "cuda", "auto"),
    "GPUS": ("all", "0,1"),
    "PRECISION": ("auto", "fp32", "fp16", "bf16", "int8"),
    "PROVIDER": ("auto", "cpu", "openvino", "cuda", "tensorrt"),
    "IMAGING": ("auto", "cpu"),
    "GPU_STREAMS": ("1", "8"),
    "GPU_ARENA_BYTES": ("64MiB", "1GB"),
    "BATCH_PIXELS": ("15360", "1000000000"),
    "BATCH_WAIT_S": ("0", "10"),
    "MODEL_CACHE": ("/var/cache/ocrsvc",),
    "TR_HOME": ("/opt/tr",),
    "TR_SHARED_SESSIONS": ON_OFF,
    "BIND": ("0.0.0.0:80", "[::1]:8000", "unix:/run/ocr"),
    "GRPC_BIND": ("127.0.0.1:8001,[::1]:8001", "unix:/run/grpc"),
    "HOSTS": ("*", "ocr.example.com,192.0.2.7"),
    "CORS": ("*", "https://app.example.com"),
    "OPS": ("open", "local", "off"),
    "PIDFILE": ("/run/ocrsvc.pid",),
    "DIALECTS": ("none", DIALECTS_THEN),
    "USUAL_PORTS": ("trwebocr,turboocr",),
    "TRWEBOCR_BOXES": ("rect", "poly"),
    "WORKERS": ("1", "256"),
    "THREADS": ("1", "4096"),
    "ENGINE_THREADS": ("1", "256"),
    "BOOT_LIMIT_S": ("0.1", "86400"),
    "MAX_REQUESTS": ("0", "1000000000"),
    "MAX_REQUESTS_JITTER": ("0", "1000000000"),
    "MAX_AGE_S": ("0", "1000000000"),
    "RSS_SOFT_BYTES": SHARE,
    "RSS_HARD_BYTES": SHARE,
    "GPU_SOFT_BYTES": SHARE,
    "GPU_HARD_BYTES": SHARE,
    "QUEUE_SIZE": ("1", "100000"),
    "DEADLINE_S": ("0.1", "3600"),
    "MAX_BODY_BYTES": ("1024", "4GiB"),
    "REQUEST_MEMORY_BYTES": ("1GB", "80%"),
    "CALLER_REQUESTS": ("0", "100000"),
    "CALLER_HEADER": ("X-Forwarded-For",),
    "MAX_PIXELS": ("1", "2147483647"),
    "FORMAT_MAX_PIXELS": (FORMATS_THEN, "jpeg=1000"),
    "MAX_PAGES": ("1", "100000"),
    "PDF_DPI": ("0", "1200"),
    "TASKS_DIR": ("/var/lib/ocrsvc",),
    "TASKS_BYTES": BYTES,
    "TASKS_S": ("0.1", "1000000000"),
    "ISOLATION": ("thread", "process"),
    "CHILD_MAX_IMAGES": ("0", "1000000000"),
    "CHILD_MEMORY_BYTES": BYTES,
    "CHILD_GPU_BYTES": SHARE,
    "QUARANTINE_SIZE": ("1", "65536"),
    "QUARANTINE_S": ("0.1", "1000000000"),
    "CACHE_BYTES": BYTES,
    "CACHE_URL": ("redis://host:6379/0", "rediss://host:6379/0", "unix:///run/redis"),
    "CACHE_S": ("0.1", "1000000000"),
    "LOG_LEVEL": ("debug", "info", "warning", "error"),
    "ACCESS_LOG": ("off", "text", "json"),
    "FAKE_LATENCY_S": ("0", "3600"),
    "FAKE_BURN_S": ("0", "3600"),
    "FAKE_LEAK_BYTES": BYTES,
    "FAKE_FAULT": ("none", "fail", "hang", "crash", "abort", "segfault", "nonsense"),
    "FAKE_FAULT_ON": ("a,b",),
    "FAKE_WARM_UP_S": ("0", "3600"),
}
# Had at some time before 0.1.0 was whole.
GONE = {"BODY_BYTES": "268435456", "QUEUE_BYTES": "134217728"}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_0_1_0_is_accepted_with_every_value_that_was(name: str) -> None:
    for value in SETTINGS[name]:
        read_settings({f"OCRSVC_{name}": value})


@pytest.mark.parametrize("name", GONE)
def test_a_setting_that_is_gone_says_what_replaced_it_as_the_documents_do(name: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({f"OCRSVC_{name}": GONE[name]})
    assert f"OCRSVC_{name} is no longer a setting: use OCRSVC_REQUEST_MEMORY_BYTES." in str(raised.value)
    assert GONE[name] not in str(raised.value)
    assert f"`OCRSVC_{name}`" in (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    assert {name.upper() for name in REPLACED} == GONE.keys()


# The package is replaced. The clients leave the processor to what starts.
SLOW = {**ENV, "OCRSVC_FAKE_LATENCY_S": "0.2"}


def wait_for_answers(outcomes: Counter[str]) -> None:
    """Until each client was answered again."""
    answered = outcomes.total()
    wait_until(lambda: outcomes.total() > answered + 2 * CLIENTS, "answers")


# In the second, the arbiter has loaded ocrsvc.errors, and its workers have what it has.
@pytest.mark.parametrize(
    ("changes", "logged", "answering"),
    [
        ({}, "ocrsvc 0.2.0 is installed, and this arbiter is 0.1.0", "0.2.0"),
        (
            {
                "ocrsvc/errors.py": ("class OperatorError(", "NEW_NAME = 1\n\n\nclass OperatorError("),
                "ocrsvc/app.py": ("from __future__ import annotations", "from ocrsvc.errors import NEW_NAME"),
            },
            "died before it was ready",
            "0.1.0",
        ),
    ],
    ids=["new code", "new code that does not fit the arbiter's"],
)
def test_sighup_takes_new_code_if_it_fits_and_fails_nothing(
    tmp_path: Path, changes: Changes, logged: str, answering: str
) -> None:
    write_package(tmp_path, "0.1.0")
    with serving(tmp_path, SLOW) as server, asking(server.url, texts_of(server)) as outcomes:
        assert version_of(server.url) == "0.1.0"
        replace_package(tmp_path, "0.2.0", changes)
        os.kill(server.pid, signal.SIGHUP)
        if not changes:
            server.wait_for("RECYCLED worker .*: reload", count=2)
        server.wait_for(logged)
        wait_for_answers(outcomes)
        assert version_of(server.url) == answering
    assert set(outcomes) == {"right"}, outcomes


@pytest.mark.timeout(300)
def test_a_restart_on_a_socket_that_is_held_takes_all_new_code_and_fails_nothing(tmp_path: Path) -> None:
    write_package(tmp_path, "0.1.0")
    with closing(HeldSocket(tmp_path, SLOW)) as held:
        service = held.start()
        try:
            with asking(held.url, texts_of(held)) as outcomes:
                assert held.stop(service) == 0
                replace_package(tmp_path, "0.2.0")
                service = held.start()
                wait_for_answers(outcomes)
                assert version_of(held.url) == "0.2.0"
        finally:
            assert held.stop(service) == 0
    assert set(outcomes) == {"right"}, outcomes


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PROXIES)
def test_hosts_behind_a_proxy_are_replaced_one_after_the_other_and_nothing_fails(
    name: str, tmp_path: Path, free_port: int
) -> None:
    old, new, proxy = (tmp_path / kind for kind in ("old", "new", "proxy"))
    write_package(old, "0.1.0")
    write_package(new, "0.2.0")
    proxy.mkdir()
    one = {**SLOW, "OCRSVC_WORKERS": "1"}
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving(old, one)) for _ in range(2)]
        url = stack.enter_context(proxied(PROXIES[name], proxy, free_port, *hosts))
        with asking(url, texts_of(hosts[0])) as outcomes:
            for host in hosts:
                port = int(host.url.rpartition(":")[2])
                assert host.stop() == 0, host.log
                stack.enter_context(serving(new, one, port))
                wait_for_answers(outcomes)
            assert version_of(url) == "0.2.0"
    assert set(outcomes) == {"right"}, outcomes
