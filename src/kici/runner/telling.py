"""How errors of the author's code are told."""

from __future__ import annotations

import os
import traceback

import kici
from kici.errors import KiciError

_MAX_CHARS = 4_000
_NOT_THE_AUTHORS = tuple(os.path.dirname(os.path.abspath(str(one.__file__))) + os.sep for one in (kici, os))


def traceback_text(error: BaseException, kici_dir: str) -> str:
    """The traceback with the author's frames only, their paths as in the repository."""
    shown = traceback.TracebackException.from_exception(error, limit=None)
    _trim(shown, set())
    text = "".join(shown.format())
    return text.replace(f'File "{kici_dir.rstrip("/")}/', 'File ".kici/').rstrip("\n")


def _trim(shown: traceback.TracebackException, seen: set[int]) -> None:
    if id(shown) in seen:
        return
    seen.add(id(shown))
    kept = [frame for frame in shown.stack if _is_authors(frame.filename)]
    shown.stack[:] = kept
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _trim(other, seen)


def _is_authors(filename: str) -> bool:
    """Neither ours, nor the import system's, nor the standard library's (packages are)."""
    if filename.startswith("<frozen "):
        return False
    return not filename.startswith(_NOT_THE_AUTHORS) or "site-packages" in filename


def sentence(error: BaseException) -> str:
    """One line about an exception: `ValueError: …`; of ours the sentence alone."""
    try:
        text = " ".join(str(error)[:_MAX_CHARS].split())
    except Exception:  # noqa: BLE001 - it is the author's class
        text = "its text cannot be made"
    if isinstance(error, KiciError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
