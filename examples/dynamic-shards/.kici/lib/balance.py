"""Files in groups that take about the same time."""

from collections.abc import Mapping

SECONDS_OF_A_NEW_FILE = 10.0


def balanced(files: list[str], seconds: Mapping[str, float], groups: int) -> list[list[str]]:
    """The slowest first, each into the group that has least to do. The same files give the same groups."""
    found: list[list[str]] = [[] for _ in range(min(groups, len(files)))]
    loads = [0.0] * len(found)
    for name in sorted(files, key=lambda name: (-seconds.get(name, SECONDS_OF_A_NEW_FILE), name)):
        least = loads.index(min(loads))
        found[least].append(name)
        loads[least] += seconds.get(name, SECONDS_OF_A_NEW_FILE)
    return [sorted(group) for group in found]
