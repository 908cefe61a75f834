"""Names of refs, checked before they stand in an argument of git."""

from __future__ import annotations

import re

from kici.agent.errors import PreparationFailed

MAX_CHARS = 250
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|^[-/.@]|[/.]$")
"""What `git check-ref-format` refuses, and a name that would be an option."""


def candidates(ref: str) -> tuple[str, ...]:
    """The full names that `ref` may stand for: itself below `refs/`, else a branch or a tag; none for no name at all.

    Raises `PreparationFailed` for what is no name of a ref.
    """
    if not ref:
        return ()
    if not is_name(ref):
        raise PreparationFailed(f"{ref[:80]!r} is no name of a branch or tag: rename it at the forge")
    if ref.startswith("refs/"):
        return (ref,)
    return (f"refs/heads/{ref}", f"refs/tags/{ref}")


def is_name(ref: str) -> bool:
    too_long = len(ref.encode(errors="surrogatepass")) > MAX_CHARS
    return not too_long and not _FORBIDDEN.search(ref) and ref.isprintable()
