"""kici: CI/CD whose workflows are Python code. Authors import all from here: `from kici import job, push, workflow`.

The names are handed out lazily (PEP 562): an agent or a server that imports `kici.wire` does not load the SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kici.sdk import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    sdk = import_module("kici.sdk")
    if name in sdk.__all__:
        return getattr(sdk, name)
    raise AttributeError(f"module 'kici' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *import_module("kici.sdk").__all__]
