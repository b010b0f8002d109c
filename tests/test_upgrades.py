"""Settings of 0.1.0 still start the service, or say what replaced them; the package is replaced under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from support import ROOT

from ocrsvc.errors import SettingsError
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.replaced import REPLACED

BYTES = ("4096", "64MiB", "1GB", "0")
SHARE = (*BYTES, "80%")
ON_OFF = ("true", "false")
FORMATS_THEN = "jpeg=1, png=2, bmp=3, pnm=4, tiff=5, webp=6, gif=7, pdf=8"
DIALECTS_THEN = (
    "trwebocr, trwebocr_cpp, kserve_v2, tfserving, kserve_v1, rapidocr_api, paddlex, paddlehub, paddle_serving, umi_ocr, "
    "ocr_space, turboocr"
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
def test_a_setting_that_is_gone_says_what_replaced_it(name: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({f"OCRSVC_{name}": GONE[name]})
    assert f"OCRSVC_{name} is no longer a setting: use OCRSVC_REQUEST_MEMORY_BYTES." in str(raised.value)
    assert GONE[name] not in str(raised.value)


def test_what_replaces_a_setting_is_one_and_the_documents_have_all_of_them() -> None:
    assert {name.upper() for name in REPLACED} == GONE.keys()
    page = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    for name, replacement in REPLACED.items():
        read_settings({f"OCRSVC_{replacement.setting.upper()}": "1GB"})
        assert f"`OCRSVC_{name.upper()}`" in page
        assert f"`OCRSVC_{replacement.setting.upper()}`" in page
