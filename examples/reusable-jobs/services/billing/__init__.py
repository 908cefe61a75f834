"""Service billing."""


def healthy() -> bool:
    return True
