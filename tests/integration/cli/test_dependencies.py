"""`kici compile` and `kici run local` where workflows import packages of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.package_index import PASSWORD, USER, PackageIndex

SOURCES = Path(__file__).parents[3] / "src"
WORKFLOW = """
import greet
from kici import job, push, step, workflow

ci = workflow("ci", on=push(), jobs=[job("build", runs_on="linux", steps=[step(greet.WORD, "echo ran")])])
"""
Type: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with PackageIndex().running() as served:
        served.add("greet", "1.0", {"greet/__init__.py": "WORD = 'welcome'\n"})
        yield served


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", root], check=True)
    (root / ".kici/workflows").mkdir(parents=True)
    (root / ".kici/workflows/ci.py").write_text(WORKFLOW)
    return root


@pytest.fixture
def kici(repository: Path, tmp_path: Path) -> Type:
    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kici.cli.main", *arguments],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "XDG_CACHE_HOME": str(tmp_path / "cache"), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    return call


def write(repository: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (repository / path).write_text(text)


def test_compile_and_run_local_import_the_packages_and_install_them_once(
    repository: Path, kici: Type, index: PackageIndex
) -> None:
    write(repository, index.project("greet"))
    compiled = kici("compile")
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stderr == "installing the packages of .kici/uv.lock\n"
    assert '"welcome"' in (repository / ".kici/kici.lock.json").read_text()
    ran = kici("run", "local", "ci")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ran" in ran.stdout
    assert "installing" not in ran.stderr
    assert len([path for path in index.paths() if path.endswith(".whl")]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_a_sandboxed_local_run_has_the_packages_too(repository: Path, kici: Type, index: PackageIndex) -> None:
    write(repository, index.project("greet"))
    ran = kici("run", "local", "ci", "--sandbox")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ran" in ran.stdout


def test_a_private_index_is_opened_by_the_developers_variables(
    repository: Path, kici: Type, index: PackageIndex
) -> None:
    write(repository, index.project("greet", part="private"))
    refused = kici("compile")
    assert refused.returncode == 1
    assert "401" in refused.stderr
    compiled = kici("compile", UV_INDEX_INNER_USERNAME=USER, UV_INDEX_INNER_PASSWORD=PASSWORD)
    assert compiled.returncode == 0, compiled.stderr
    assert PASSWORD not in (repository / ".kici/kici.lock.json").read_text()


def with_registry(index: PackageIndex, url: str = "") -> str:
    made = f'registry("{url or index.url + "/private/simple"}", token_secret="env:INNER_TOKEN")'
    return WORKFLOW.replace("import job", "import job, registry").replace(
        "on=push()", f"on=push(), registries=[{made}]"
    )


def test_a_registry_gets_its_token_from_the_local_secrets(repository: Path, kici: Type, index: PackageIndex) -> None:
    write(repository, index.project("greet", part="private"))
    write(repository, {".kici/workflows/ci.py": with_registry(index), ".gitignore": ".kici/.secrets\n"})
    refused = kici("compile")
    assert refused.returncode == 1
    assert "401" in refused.stderr
    ran = kici("run", "local", "ci", "--secret", f"INNER_TOKEN={PASSWORD}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    write(repository, {".kici/.secrets": f"INNER_TOKEN={PASSWORD}\n"})
    compiled = kici("compile", XDG_CACHE_HOME=str(repository.parent / "another"))
    assert compiled.returncode == 0, compiled.stderr
    lock = (repository / ".kici/kici.lock.json").read_text()
    assert '"tokenSecret": "INNER_TOKEN"' in lock
    assert PASSWORD not in lock + refused.stderr + ran.stdout + ran.stderr + compiled.stderr


def test_a_registry_that_no_index_answers_to_is_a_compile_error_at_its_line(
    repository: Path, kici: Type, index: PackageIndex
) -> None:
    write(repository, index.project("greet"))
    write(repository, {".kici/workflows/ci.py": with_registry(index, "https://packages.example.com/simple")})
    refused = kici("compile")
    assert refused.returncode == 1
    assert (
        ".kici/workflows/ci.py:5: workflow 'ci': registry https://packages.example.com/simple: no index"
        in refused.stderr
    )
    assert '[[tool.uv.index]] with name = "internal" and url = "https://packages.example.com/simple"' in refused.stderr


def test_without_uv_the_error_says_how_to_get_it(repository: Path, kici: Type, index: PackageIndex) -> None:
    write(repository, index.project("greet"))
    hidden = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda name, *a: name != 'uv' and f(name, *a)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{hidden}\nfrom kici.cli.main import main; import sys; sys.argv[1:] = ['compile']; main()",
        ],
        cwd=repository,
        env={
            "PYTHONPATH": str(SOURCES),
            "PATH": "/usr/bin:/bin",
            "HOME": str(repository.parent),
            "XDG_CACHE_HOME": str(repository.parent / "no-uv"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "pip install uv" in done.stderr
