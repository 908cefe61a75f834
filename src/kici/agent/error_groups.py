"""Looking into exception groups. (`except*` cannot raise anything but a new group.)"""

from __future__ import annotations


def leaves(error: Exception) -> list[Exception]:
    """The errors inside, however deep; of an error that is no group the error itself."""
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
