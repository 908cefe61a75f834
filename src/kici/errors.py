"""The top of every exception hierarchy of ours."""

from __future__ import annotations


class KiciError(Exception):
    """What a user or operator can act on: the message is one sentence that says what to do.

    `code` is stable and meant for programs; `status` is the HTTP status that the API maps the error to.
    """

    code = "kici_error"
    status = 500
