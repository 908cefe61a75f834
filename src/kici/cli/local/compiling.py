"""The compile of a local run, beside everything else that it does before its first step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kici.compiler import child_process

if TYPE_CHECKING:
    from kici.compiler.compile import Compiled


class Compiling:
    """The process that imports the workflows starts at once; the rest, mostly waiting for it, is done in a thread."""

    def __init__(self, root: Path, hidden: Mapping[str, str] | None = None) -> None:
        """`hidden`: secrets that the command line gives."""
        self._root = root
        self._hidden = hidden or {}
        self._child = child_process.start(root)
        self._done: Compiled | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._compile, name="kici-compile", daemon=True)
        self._thread.start()

    def result(self) -> Compiled:
        """Waits. Raises `KiciError` with all that is wrong; `lock` of what is returned is not None."""
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        assert self._done
        self._done.needed()
        return self._done

    def warnings(self) -> list[str]:
        """The compiler's, and that the committed lock file is another one."""
        from kici.compiler import drift

        compiled = self.result()
        assert compiled.lock
        found = [str(warning) for warning in compiled.warnings]
        differences = drift.differences(self._root, compiled.lock, compiled.data)
        if differences:
            shown = "; ".join(differences[:3])
            found.append(
                f"the committed lock file differs, an orchestrator would run something else ({shown}):"
                " run `kici compile` and commit it"
            )
        return found

    def _secrets(self) -> Mapping[str, str]:
        from kici.cli.local import secrets

        return secrets.everywhere(self._root, self._hidden)

    def _compile(self) -> None:
        try:
            from kici.compiler.compile import compile_directory

            self._done = compile_directory(self._root, child=self._child, secrets=self._secrets)
        except BaseException as error:  # noqa: BLE001 - `result` raises it where somebody listens
            self._failed = error
