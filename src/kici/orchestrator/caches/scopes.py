"""Which entries of its repository's caches a run may find, and where it writes.

A run writes only under the ref that it is of, and finds what stands there, then under the branch that its pull request
goes to, then under the default branch. So nothing that a branch or a pull request makes is found by the default
branch, by another branch, or by a tag.
"""

from __future__ import annotations

import hashlib

from kici.engine.events import Event, Trust
from kici.orchestrator.store.caches import DEFAULT_BRANCH, UNTRUSTED

MAX_CHARS = 200
"""Of a scope, which is a part of an index: what is longer ends with a hash."""


def written(event: Event) -> str:
    if _of_pull_request(event):
        # The same pull request may be trusted at another time: what it wrote before is then still not to be trusted.
        return f"{'trusted-pr-' if event.trust is Trust.TRUSTED else UNTRUSTED}{event.pr_number}"
    if event.tag:
        return _bounded(f"tags/{event.tag}")
    return _of_branch(event, event.branch)


def readable(event: Event) -> list[str]:
    """What is nearest first."""
    base = [_of_branch(event, event.base_branch)] if _of_pull_request(event) else []
    return list(dict.fromkeys([written(event), *base, DEFAULT_BRANCH]))


def _of_pull_request(event: Event) -> bool:
    return event.of_pull_request or event.trust is not Trust.TRUSTED


def _of_branch(event: Event, branch: str) -> str:
    return DEFAULT_BRANCH if branch in ("", event.default_branch) else _bounded(f"heads/{branch}")


def _bounded(scope: str) -> str:
    if len(scope) < MAX_CHARS:  # so that no other branch can have the name that a long one gets
        return scope
    digest = hashlib.sha256(scope.encode()).hexdigest()
    return f"{scope[: MAX_CHARS - len(digest) - 1]}-{digest}"
