"""What the text of the modules tells: which of them import which, and commands that are built by f-strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kici.compiler.diagnostics import Diagnostic

if TYPE_CHECKING:
    from kici.dependencies.registries import Found

_PLAIN_COMMAND = re.compile(rb"""\.sh\(\s*(?:"[^"\\\n]*"|'[^'\\\n]*')\s*[,)]""")
"""A call with one plain string: nothing to look for, and the file need not be parsed."""


class Sources:
    """The Python files under `.kici/`, each parsed once, when it is asked about."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = {path: data for path, data in files.items() if path.endswith(".py")}
        roots = {re.escape(path.partition("/")[0].removesuffix(".py").encode()) for path in self._files}
        self._mention = re.compile(rb"\bfrom[\s\\]*\.|\b(?:" + b"|".join(sorted(roots)) + rb")\b")
        """Stands in every module that imports another one."""
        self._trees: dict[str, ast.Module | None] = {}
        self._imports: dict[str, frozenset[str]] = {}

    def closure(self, path: str) -> tuple[str, ...]:
        """The module and every module under `.kici/` that it imports, directly or not, anywhere in its text. Sorted."""
        found = {path}
        waiting = [path]
        while waiting:
            new = self._imported_by(waiting.pop()) - found
            found |= new
            waiting += new
        return tuple(sorted(found))

    def unsafe_commands(self) -> Iterator[Diagnostic]:
        """Calls of `….sh` whose command is put together from values: they are not quoted."""
        for path, data in self._files.items():
            if b".sh(" not in _PLAIN_COMMAND.sub(b"", data):
                continue
            tree = self._tree(path)
            for node in ast.walk(tree) if tree else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sh":
                    how = _built(node.args[0]) if node.args else ""
                    if how:
                        message = (
                            f"its command is built by {how}, so its values reach the shell unquoted:"
                            ' write ctx.sh("… {name} …", name=value)'
                        )
                        yield Diagnostic(f".kici/{path}", node.args[0].lineno, "ctx.sh", message)

    def registries(self) -> Iterator[Found]:
        """Calls of `registry` whose address and secret are written in plain text."""
        from kici.dependencies.registries import Found

        for path, data in self._files.items():
            tree = self._tree(path) if b"registry" in data else None
            for node in ast.walk(tree) if tree else ():
                if isinstance(node, ast.Call) and _called(node.func) == "registry":
                    values = {one.arg: _text(one.value) for one in node.keywords}
                    url = _text(node.args[0]) if node.args else values.get("url")
                    secret = values.get("token_secret")
                    if url and secret:
                        yield Found(url, secret.removeprefix("env:"), values.get("name"))

    def _tree(self, path: str) -> ast.Module | None:
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(self._files[path])
            except (SyntaxError, ValueError):  # reported at import
                self._trees[path] = None
        return self._trees[path]

    def _imported_by(self, path: str) -> frozenset[str]:
        if path not in self._imports:
            data = self._files[path]
            # Most modules import none of their neighbours, and to parse them takes longer than all the rest.
            tree = self._tree(path) if self._mention.search(data) or not data.isascii() else None
            names = _imported_names(tree, _package(path)) if tree else ()
            self._imports[path] = frozenset(file for name in names for file in self._files_of(name))
        return self._imports[path]

    def _files_of(self, name: str) -> Iterator[str]:
        """A dotted name's module, and the packages around it, which are imported first."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            stem = "/".join(parts[:length])
            yield from (file for file in (f"{stem}.py", f"{stem}/__init__.py") if file in self._files)


def _imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


def _package(path: str) -> str:
    return ".".join(path.split("/")[:-1])


def _built(node: ast.expr) -> str:
    """How a command is put together from values; empty if it is not."""
    match node:
        case ast.JoinedStr(values=values) if any(isinstance(value, ast.FormattedValue) for value in values):
            return "an f-string"
        case ast.BinOp(op=ast.Mod()) if _has_text(node.left):
            return "%"
        case ast.BinOp(op=ast.Add()) if not _constant(node) and (_has_text(node.left) or _has_text(node.right)):
            return "+"
        case ast.Call(func=ast.Attribute(value=value, attr="format")) if _has_text(value):
            return ".format"
        case _:
            return ""


def _has_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _has_text(node.left) or _has_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _constant(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    return isinstance(node, ast.Constant)


def unlisted(imported: Iterable[str], files: Mapping[str, bytes]) -> Iterator[Diagnostic]:
    """Modules that were imported and that git ignores: the agent will not have them."""
    for path in imported:
        if path not in files:
            yield Diagnostic(f".kici/{path}", 0, "", "it is imported, but git ignores it: no agent would have it")


def _called(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _text(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
