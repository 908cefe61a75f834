"""Names of `KICI_*` variables that look like a slip of the pen."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def misspelt(present: Iterable[str], known: Collection[str]) -> list[tuple[str, str]]:
    """Variables that are none of `known` but nearly one, each with the nearest. Others belong to another program."""
    found = []
    for name in sorted(present):
        if name.startswith("KICI_") and name not in known and (meant := nearest(name, known)):
            found.append((name, meant))
    return found


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that two slips (a letter too much, missing, wrong; two swapped) or fewer lead to."""
    distance, best = min(((_distance(name, other), other) for other in known), default=(3, ""))
    return best if distance <= 2 else None


def _distance(a: str, b: str) -> int:
    """Edits between the two (optimal string alignment); 3 stands for more than 2 where the lengths alone say so."""
    if abs(len(a) - len(b)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row, above = row, [i], before
        for j, y in enumerate(b, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
    return row[-1]
