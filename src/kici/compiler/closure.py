"""Which modules under `.kici/` a module imports, directly or through others, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping


def closure(module: str, sources: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Paths of the module and all it imports, sorted. `sources`: path → text; `names`: dotted name → path."""
    seen = {module}
    todo = [module]
    dotted = {path: name for name, path in names.items()}
    while todo:
        path = todo.pop()
        for name in _imported(sources[path], dotted[path], is_package=path.endswith("__init__.py")):
            found = names.get(name)
            if found is not None and found not in seen:
                seen.add(found)
                todo.append(found)
    return sorted(seen)


def _imported(source: str, name: str, *, is_package: bool) -> Iterator[str]:
    """Dotted names that an import may bring in: packages on the way, and what may be a name or a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _prefixes(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parts, base] if base else parts)
            yield from _prefixes(base)
            for alias in node.names:
                yield f"{base}.{alias.name}"


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])
