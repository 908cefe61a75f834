from __future__ import annotations

from tests.support.local_repository import bare, commit, git, hooked, isolated_python

__all__ = ["bare", "commit", "git", "hooked", "isolated_python"]
