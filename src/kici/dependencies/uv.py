"""How uv is called, wherever it runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from kici.dependencies.errors import UvMissing

BUILDS_VARIABLE = "KICI_DEPENDENCY_BUILDS"
_CREDENTIAL = re.compile(r"UV_INDEX_[A-Z0-9_]{1,100}_(USERNAME|PASSWORD)")
_INHERITED = re.compile(r"PATH|LANG|SSL_CERT_(FILE|DIR)|(HTTP|HTTPS|NO|ALL)_PROXY", re.IGNORECASE)
_BUILD_REFUSED = re.compile(r"--no-build|building (source distributions )?is disabled", re.IGNORECASE)
MAX_TOLD_CHARS = 4_000


def find_uv() -> str:
    """The one that is installed beside us, else the one on PATH. Raises `UvMissing`."""
    beside = Path(sysconfig.get_path("scripts")) / "uv"
    if find_spec("uv") and os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("uv")
    if found is None:
        raise UvMissing
    return os.path.abspath(found)


def sync_argv(uv: str, project: str, *, builds: bool) -> list[str]:
    """Exactly what is locked, for the interpreter that kici runs on. No secret is among the arguments."""
    return [
        *(uv, "sync", "--locked", "--no-install-project", "--no-default-groups", "--no-progress", "--color", "never"),
        *("--project", project, "--python", sys.executable, *(() if builds else ("--no-build",))),
    ]


def sync_environment(*, home: str, cache: str, target: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Of the uv process: nothing of `variables` but the way to programs, proxies and certificates."""
    kept = {name: value for name, value in variables.items() if _INHERITED.fullmatch(name)}
    return kept | {
        "HOME": home,
        "UV_CACHE_DIR": cache,
        "UV_PROJECT_ENVIRONMENT": target,
        "UV_LINK_MODE": "copy",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_NO_ENV_FILE": "1",
    }


def credentials(variables: Mapping[str, str]) -> dict[str, str]:
    """Those among the variables, or secrets, that uv takes for an index: it sends them to that index's origin alone."""
    return {name: value for name, value in variables.items() if _CREDENTIAL.fullmatch(name)}


def site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def told(said: str) -> str:
    """The end of what uv said about a failure, and the way out where there is one."""
    text = said.strip()[-MAX_TOLD_CHARS:] or "uv says nothing"
    if _BUILD_REFUSED.search(text):
        text += (
            f"\nA package without a wheel for this interpreter and platform would have to be built, which runs its"
            f" code: lock one that has a wheel, or set {BUILDS_VARIABLE}=true"
        )
    return text
