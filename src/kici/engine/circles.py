"""Circles among what needs each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def circle(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """Some circle, first name again at the end; empty if there is none. What is needed must be a key, too."""
    done: set[str] = set()
    for start in needs:
        trail: dict[str, None] = {}
        stack = [iter([start])]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                if trail:
                    done.add(trail.popitem()[0])
            elif following in trail:
                names = list(trail)
                return [*names[names.index(following) :], following]
            elif following not in done:
                trail[following] = None
                stack.append(iter(needs[following]))
    return []
