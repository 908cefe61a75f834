"""The `where` of a list with optional filters: only those that are asked for stand in it, so that indexes serve."""

from __future__ import annotations


class Conditions:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self.values: list[object] = []

    def add(self, condition: str, value: object) -> None:
        """`condition` holds one `{}` where the value's parameter goes; a None is no filter."""
        if value is not None:
            self.values.append(value)
            self._parts.append(condition.format(f"${len(self.values)}"))

    def param(self, value: object) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    @property
    def where(self) -> str:
        return f"where {' and '.join(self._parts)}" if self._parts else ""
