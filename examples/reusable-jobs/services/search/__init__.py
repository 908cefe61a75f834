"""Service search."""


def healthy() -> bool:
    return True
