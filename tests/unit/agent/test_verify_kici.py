from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kici.agent.verify_kici import LOCK, KiciNotVerified, find, verify, write
from kici.engine import kici_files, lockfile

SOURCE = {"workflows/ci.py": b"code\n", "helpers/a.py": b"help\n"}


def locked(listed: dict[str, bytes]) -> bytes:
    job = lockfile.LockJob("build", steps=(lockfile.LockStep("make", command="make"),), runs_on=("linux",))
    place = lockfile.SourceLocation(".kici/workflows/ci.py")
    workflow = lockfile.LockWorkflow("ci", place, "ci", "0" * 64, triggers=(), jobs=(job,))
    digests = {path: kici_files.digest(data) for path, data in listed.items()}
    return lockfile.encode(lockfile.LockFile(1, "0" * 64, digests, (workflow,)))


def checked(actual: dict[str, bytes], listed: dict[str, bytes] = SOURCE) -> lockfile.LockFile:
    lock = locked(listed)
    return verify(actual | {LOCK: lock}, hashlib.sha256(lock).hexdigest())


def test_files_that_are_those_of_the_lock_pass_and_the_job_is_found() -> None:
    found = find(checked(SOURCE), "ci", "build")
    assert found.job.steps[0].command == "make"
    assert found.workflow.source.file == ".kici/workflows/ci.py"


def test_line_endings_do_not_matter() -> None:
    checked(SOURCE | {"helpers/a.py": b"help\r\n"})


@pytest.mark.parametrize(
    ("actual", "sentence"),
    [
        ({"workflows/ci.py": b"code\n"}, r"\.kici/helpers/a\.py is in the lock file but missing"),
        (SOURCE | {"workflows/ci.py": b"evil\n"}, r"\.kici/workflows/ci\.py differs from the lock file"),
        (SOURCE | {"sitecustomize.py": b""}, r"\.kici/sitecustomize\.py is not in the lock file"),
    ],
)
def test_a_missing_a_different_and_an_unlisted_file_are_named(actual: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(KiciNotVerified, match=sentence):
        checked(actual)


def test_another_lock_file_than_the_one_that_was_matched_is_refused() -> None:
    with pytest.raises(KiciNotVerified, match="not the file that this run was made from"):
        verify(SOURCE | {LOCK: locked(SOURCE)}, "0" * 64)


def test_a_commit_without_lock_file_is_refused() -> None:
    with pytest.raises(KiciNotVerified, match=r"has no \.kici/kici"):
        verify(SOURCE, "0" * 64)


def test_an_unreadable_lock_file_is_refused_even_with_the_right_digest() -> None:
    with pytest.raises(KiciNotVerified, match="kici compile"):
        verify({LOCK: b"nonsense"}, hashlib.sha256(b"nonsense").hexdigest())


def test_a_job_that_the_lock_does_not_have_is_refused() -> None:
    with pytest.raises(KiciNotVerified, match="'deploy'"):
        find(checked(SOURCE), "ci", "deploy")


def test_written_files_can_be_read_but_not_changed_by_others(tmp_path: Path) -> None:
    write(SOURCE, tmp_path)
    assert (tmp_path / "helpers/a.py").read_bytes() == b"help\n"
    assert (tmp_path / "helpers").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "helpers/a.py").stat().st_mode & 0o777 == 0o644
