"""`ctx.sh(f"…{name}…")` puts values into a shell unquoted. Found in the source, because no run shows it in time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kici.compiler.diagnostics import Diagnostic


def find(source: str, file: str) -> Iterator[Diagnostic]:
    """One warning for each call of a method `sh` whose first argument is an f-string with values in it."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sh"):
            continue
        first = node.args[0] if node.args else None
        if isinstance(first, ast.JoinedStr) and any(isinstance(part, ast.FormattedValue) for part in first.values):
            yield Diagnostic(
                file,
                first.lineno,
                "ctx.sh",
                "an f-string puts its values into the shell unquoted:"
                ' write ctx.sh("… {name}", name=value), which quotes them',
            )
