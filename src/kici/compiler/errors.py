"""What keeps a compile from starting at all. What is wrong with the workflows is a list of `Diagnostic`s."""

from __future__ import annotations

from kici.errors import KiciError


class CompileError(KiciError):
    code = "compile_error"
    status = 422
