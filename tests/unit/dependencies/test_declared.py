"""What an environment depends on is in its key; what is half declared is refused."""

from __future__ import annotations

import platform
import sys
import sysconfig
from types import SimpleNamespace
from typing import Any

import pytest

from kici.dependencies import uv
from kici.dependencies.declared import Declared, declared, key
from kici.dependencies.errors import DependenciesInvalid, UvMissing

WANTED = Declared(b"project", b"lock")


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (platform, "python_version", lambda: "3.99.1"),
        (platform, "libc_ver", lambda: ("musl", "1.2")),
        (sysconfig, "get_config_var", lambda _name: ".cpython-399-x86_64-linux-gnu.so"),
        (sysconfig, "get_platform", lambda: "linux-riscv64"),
        (sys, "implementation", SimpleNamespace(cache_tag="pypy399")),
    ],
)
def test_another_interpreter_abi_libc_or_platform_has_another_key(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, value: Any
) -> None:
    before = key(WANTED, builds=False)
    assert before == key(WANTED, builds=False)
    monkeypatch.setattr(place, name, value)
    after = key(WANTED, builds=False)
    monkeypatch.undo()
    assert after != before


def test_other_files_builds_and_scopes_have_other_keys() -> None:
    keys = [
        key(WANTED, builds=False),
        key(WANTED, builds=True),
        key(WANTED, builds=False, scope="repository"),
        key(Declared(b"project2", b"lock"), builds=False),
        key(Declared(b"project", b"lock2"), builds=False),
    ]
    assert len(set(keys)) == len(keys)


def test_a_project_without_dependencies_needs_no_lock_and_one_that_cannot_be_read_is_told() -> None:
    assert declared({"pyproject.toml": b"[tool.ruff]\nline-length = 100\n"}) is None
    assert declared({"pyproject.toml": b"[project]\nname='x'\nversion='0'\n"}) is None
    with pytest.raises(DependenciesInvalid, match="cannot be read"):
        declared({"pyproject.toml": b"[project"})


def test_only_variables_of_indexes_are_credentials() -> None:
    given = {"UV_INDEX_A_B_PASSWORD": "x", "UV_INDEX_URL": "y", "AWS_SECRET": "z", "UV_INDEX_a_PASSWORD": "q"}
    assert uv.credentials(given) == {"UV_INDEX_A_B_PASSWORD": "x"}


def test_the_environment_of_uv_has_nothing_of_ours_but_the_way_out() -> None:
    given = {"KICI_AGENT_TOKEN": "t", "UV_INDEX_URL": "u", "PATH": "/bin", "HTTPS_PROXY": "p", "SSL_CERT_FILE": "c"}
    made = uv.sync_environment(home="/h", cache="/c", target="/t", variables=given)
    assert {"KICI_AGENT_TOKEN", "UV_INDEX_URL"} & made.keys() == set()
    assert (made["HTTPS_PROXY"], made["SSL_CERT_FILE"], made["HOME"]) == ("p", "c", "/h")


def test_without_uv_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UvMissing, match="pip install uv"):
        uv.find_uv()
