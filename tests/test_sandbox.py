"""A restricted process cannot use the network, files, programs or other processes; everything else works."""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support import data_of, read_data, run_program

from ocrsvc.system import sandbox
from ocrsvc.system.sandbox import Restrictions

# The child makes these attempts in order, each in a new thread, since threads must be restricted too.
ATTEMPTS: dict[str, dict[str, str]] = read_data("sandbox_attempts.json")
TRIES = ATTEMPTS["allowed"] | ATTEMPTS["refused"]
# Errors other than EPERM: Landlock's EACCES, and ENOSYS, after which libraries fall back to an older call.
OTHER_ERRORS = {
    "read another file": errno.EACCES,
    "read another file of another process": errno.EACCES,
    "open by a structure": errno.ENOSYS,
}
SOURCE = data_of("programs")["sandbox"]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results of a restricted process: Landlock's version, whether seccomp works, and each attempt's error."""
    folders = [tmp_path_factory.mktemp(name) for name in ("readable", "other")]
    files = [folder / "file" for folder in folders]
    for file in files:
        file.write_bytes(b"content")
        file.chmod(0o755)
    done = run_program("-c", SOURCE, json.dumps([*map(str, files), TRIES]))
    assert done.returncode == 0, done.stderr
    assert [file.read_bytes() for file in files] == [b"content", b"xontent"]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ATTEMPTS["allowed"])
def test_restricted_process_is_allowed(name: str, outcome: Any) -> None:
    assert outcome[2][name] is None


@pytest.mark.parametrize("name", ATTEMPTS["refused"])
def test_restricted_process_is_refused(name: str, outcome: Any) -> None:
    version, has_seccomp, found = outcome
    if not (version if OTHER_ERRORS.get(name) == errno.EACCES else has_seccomp):
        pytest.skip("this kernel lacks the feature that would refuse it")
    assert found[name] == OTHER_ERRORS.get(name, errno.EPERM)


def test_available_kernel_features_are_used(outcome: Any) -> None:
    try:
        version = sandbox.read_version()
    except OSError:
        version = 0
    filters = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    assert outcome[:2] == [version, filters and os.uname().machine in sandbox._ARCHITECTURES]


def test_restrict_reports_missing_kernel_features(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "none")

    monkeypatch.setattr(sandbox, "confine_to", refused)
    monkeypatch.setattr(sandbox, "refuse_calls", refused)
    assert sandbox.restrict() == Restrictions(0, seccomp=False)


@pytest.mark.parametrize(("version", "rights"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (99, 16)])
def test_older_landlock_gets_only_rights_it_knows(version: int, rights: int) -> None:
    assert sandbox.supported(sandbox._FILE_RIGHTS, version) == (1 << rights) - 1
    assert sandbox.supported(sandbox._ATTRIBUTE_BYTES, version) == (8 if version < 4 else 16 if version < 6 else 24)


def test_unknown_architecture_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_ARCHITECTURES", {})
    with pytest.raises(OSError, match="no filter"):
        sandbox.refuse_calls()


HEADERS = {
    "x86_64": (1, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": (2, Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b"),
}


@pytest.mark.parametrize("architecture", HEADERS)
def test_call_numbers_match_the_kernel_headers(architecture: str) -> None:
    column, header, pattern = HEADERS[architecture]
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    known = {name: int(number) for name, number in re.findall(pattern, header.read_text("utf-8"))}
    tables = (sandbox._REFUSED, sandbox._ABSENT, sandbox._OWN, sandbox._OWN_OR_ZERO, sandbox._LIMIT)
    more = (sandbox._OPEN, sandbox._OPENAT, sandbox._CLONE)
    rows = [call.split() for table in (*tables, *more) for call in table.split(",")]
    # Calls that are newer than the installed headers are not compared.
    wrong = [row[0] for row in rows if row[0] in known and known[row[0]] != int(row[column])]
    missing = [row[0] for row in rows if row[0] not in known and 0 <= int(row[column]) < 435]
    assert (wrong, missing) == ([], [])


@pytest.mark.parametrize(("written", "kept", "message"), [(100, 100, "MemoryError"), (101, 100, "OSError")])
def test_resource_limits_apply(written: int, kept: int, message: str) -> None:
    file = os.memfd_create("out")
    source = (
        "import os; from ocrsvc.system.sandbox import limit_resources; limit_resources(1 << 30, 100, 16); "
        f"os.pwrite({file}, bytes(100), 0); os.pwrite({file}, bytes({written} - 100), 100); bytes(2 << 30)"
    )
    try:
        done = run_program("-c", source, pass_fds=(file,))
        assert (os.fstat(file).st_size, done.returncode != 0) == (kept, True)
        assert message in done.stderr
    finally:
        os.close(file)
