"""The same suite as a user without privileges, where the tests run as root."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kici.agent.sandbox.launch import SOURCE, interpreter_paths

UID = 61_100
TESTS = Path(__file__).parent
REPOSITORY = TESTS.parents[2]
USER = f"kici-test:x:{UID}:{UID}::/nonexistent:/bin/sh"
GROUP = f"kici-test:x:{UID}:"
RANGE = "kici-test:300000:65536"


def as_user(command: Sequence[str], files: Path, ranges: str = RANGE) -> list[str]:
    """Run a command as another user, who may enter the directories of the interpreter and of this repository.

    In a mount namespace, not in a box: `newuidmap` is a setuid program, and works in no box. `files` is an empty
    directory; the user has an entry in `/etc/passwd` and `ranges` in `/etc/subuid`.
    """
    lines = ["set -e"]
    for name, content in (
        ("passwd", Path("/etc/passwd").read_text().rstrip() + f"\n{USER}\n"),
        ("group", Path("/etc/group").read_text().rstrip() + f"\n{GROUP}\n"),
        ("subuid", ranges + "\n"),
        ("subgid", ranges + "\n"),
    ):
        (files / name).write_text(content)
        if not (Path("/etc") / name).exists():
            lines.append(f"touch /etc/{name}")
        lines.append(f"mount --bind {shlex.quote(str(files / name))} /etc/{name}")
    home, old = shlex.quote(str(Path.home())), shlex.quote(str(files / "home"))
    lines += [f"mkdir {old}", f"mount --rbind {home} {old}", f"mount -t tmpfs -o mode=0755 kici-test {home}"]
    for path in _below_home([*interpreter_paths(), REPOSITORY]):
        source = shlex.quote(str(files / "home" / path.relative_to(Path.home())))
        lines += [f"mkdir -p {shlex.quote(str(path))}", f"mount --bind {source} {shlex.quote(str(path))}"]
    lines.append(f"umount -l {old}")
    lines.append(f'exec setpriv --reuid={UID} --regid={UID} --clear-groups -- "$@"')
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "sh", *command]


def _below_home(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_relative_to(Path.home()) and path != Path.home():
            yield path


def run_suites(*names: str, files: Path, ranges: str = RANGE, options: Sequence[str] = ("-k", "not container")) -> str:
    return run_tests([str(TESTS / f"test_{name}.py") for name in names], files, {}, ranges, options)


def run_tests(
    suites: Sequence[str], files: Path, more: Mapping[str, str], ranges: str = RANGE, options: Sequence[str] = ()
) -> str:
    argv = [sys.executable, "-m", "pytest", "-n0", "-rfEs", "--rootdir", str(REPOSITORY), *options, *suites]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/nonexistent",
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        **more,
    }
    ran = subprocess.run(
        as_user(argv, files, ranges), env=environment, capture_output=True, text=True, timeout=170, cwd=REPOSITORY
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def files(base: Path) -> Path:
    directory = base / "files"
    directory.mkdir(mode=0o755)
    return directory


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as a user already")


@pytest.fixture(autouse=True)
def newuidmap() -> None:
    if shutil.which("newuidmap") is None:
        if os.environ.get("CI"):
            raise FileNotFoundError("newuidmap is not installed: the package uidmap has it")
        pytest.skip("newuidmap is not installed")


def test_the_suite_passes_for_an_agent_that_is_not_root(files: Path) -> None:
    assert run_suites("contract", "isolation", "choose", files=files).count(".") > 60


def test_the_attacks_fail_against_an_agent_that_is_not_root(files: Path) -> None:
    assert run_suites("attacks", "seccomp", files=files).count(".") > 40


@pytest.fixture
def containers(files: Path) -> Iterator[dict[str, str]]:
    """The environment of a user who has a place for containers."""
    for program in ("podman", "runc"):
        if shutil.which(program) is None:
            if os.environ.get("CI"):
                raise FileNotFoundError(f"{program} is not installed")
            pytest.skip(f"{program} is not installed")
    environment = {"HOME": str(files / "user"), "XDG_RUNTIME_DIR": str(files / "runtime")}
    for directory in environment.values():
        Path(directory).mkdir(mode=0o700)
        os.chown(directory, UID, UID)
    yield environment
    # podman leaves a process that keeps its user namespace.
    for file in files.glob("runtime/libpod/tmp/pause.pid"):
        os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("names", [("contract",), ("isolation",), ("attacks", "seccomp")], ids="-".join)
def test_containers_keep_the_same_for_an_agent_that_is_not_root(
    files: Path, containers: dict[str, str], names: tuple[str, ...]
) -> None:
    suites = [str(TESTS / f"test_{name}.py") for name in names]
    assert run_tests(suites, files, containers, options=["-k", "container"]).count(".") >= 10


def test_without_ranges_of_ids_image_builds_are_refused_with_the_command_that_gives_them(files: Path) -> None:
    program = (
        "from kici.agent.sandbox.choose import choose\n"
        "from kici.agent.sandbox.contract import SandboxUnavailable\n"
        "try:\n    choose('auto', 'image-build')\nexcept SandboxUnavailable as error:\n    print(error)\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = as_user([sys.executable, "-c", program], files, "somebody-else:300000:65536")
    ran = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert (
        "KICI_SANDBOX_PROFILE=image-build, but image builds need 65,536 ids for kici-test in /etc/subuid" in ran.stdout
    )
    assert "usermod --add-subuids" in ran.stdout
