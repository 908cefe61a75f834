"""kici: CI/CD whose workflows are Python code. Authors import it all from here: `from kici import job, push, workflow`.

The names are handed out lazily (PEP 562): an agent or a server that imports `kici.wire` does not load the SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kici.sdk import *  # noqa: F403

__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker shall refuse what is not there

    def __getattr__(name: str) -> Any:
        from importlib.util import find_spec  # late: who only wants the version does without

        # `from kici import wire` asks here before it looks for a module.
        if not name.startswith("__") and find_spec(f"{__name__}.{name}") is None:
            sdk = import_module("kici.sdk")
            if name in sdk.__all__:
                return globals().setdefault(name, getattr(sdk, name))
            if (refused := sdk.vocabulary.why_not(name)) is not None:
                raise refused
        raise AttributeError(f"module 'kici' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *import_module("kici.sdk").__all__]
