"""What the pipeline asks of a repository, wherever it is: files at a commit, differences, what a ref means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from kici.engine.changed import Answer, Ask, Changed, Compare, Deciding, MergeBase, Trouble
from kici.forges.git import changed, command, objects, refs
from kici.forges.git.errors import BadRemote, CommitMissing, GitFailed
from kici.forges.git.mirrors import Mirrors
from kici.forges.git.objects import Blob
from kici.forges.git.refs import Resolved
from kici.forges.git.remote import Remote, check_sha, check_url, credentials

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Repositories:
    """Reads remote repositories through mirrors, and those of our own (`local`: name → bare repository) directly."""

    def __init__(
        self, mirrors: Path, local: Mapping[str, Path], *, timeout_s: float = command.DEFAULT_TIMEOUT_S
    ) -> None:
        self._mirrors = Mirrors(mirrors, timeout_s=timeout_s)
        self._local = local
        self._timeout_s = timeout_s

    async def blobs(self, remote: Remote, sha: str, paths: Sequence[str], *, max_bytes: int) -> dict[str, Blob]:
        """The files at the commit; None for one that is not there, `TooLarge` for one above `max_bytes`.

        Raises `GitUnavailable` if the forge cannot be asked now: that says nothing about the files.
        """
        check_sha(sha)
        if local := self._local_repository(remote):
            return await objects.read_blobs(local, sha, paths, max_bytes=max_bytes, timeout_s=self._timeout_s)

        async def read() -> dict[str, Blob]:
            mirror = await self._mirrors.with_trees(remote, [sha])
            return await objects.read_blobs(
                mirror, sha, paths, max_bytes=max_bytes, config=credentials(remote), timeout_s=self._timeout_s
            )

        return await self._through_mirror(remote, read)

    async def settle(self, remote: Remote, deciding: Deciding) -> Changed:
        """Answer what `engine.changed` asks, and return what it decides."""
        answer: Answer = None
        try:
            while True:
                answer = await self._answer(remote, deciding.send(answer))
        except StopIteration as decided:
            result: Changed = decided.value
            return result

    async def _answer(self, remote: Remote, ask: Ask) -> Answer:
        async def ask_git() -> Answer:
            local = self._local_repository(remote)
            match ask:
                case MergeBase(one, other):
                    check_sha(one)
                    check_sha(other)
                    return await changed.merge_base(
                        local or await self._mirrors.with_history(remote, [one, other]), one, other
                    )
                case Compare(base, head):
                    check_sha(base)
                    check_sha(head)
                    trees = local or await self._mirrors.with_trees(remote, [base, head])
                    files = await changed.changed_files(trees, base, head)
                    return Trouble.TOO_MANY if files is None else files

        try:
            return await self._through_mirror(remote, ask_git)
        except CommitMissing:
            return None if isinstance(ask, MergeBase) else Trouble.GONE

    async def resolve(self, remote: Remote, ref: str) -> Resolved | None:
        """The commit of a branch, a tag, a full ref or a commit id; of the default branch if `ref` is empty."""
        local = self._local_repository(remote)
        if local:
            return refs.choose(ref, await refs.of_repository(local, ref))
        check_url(remote.url)
        return refs.choose(ref, await refs.of_remote(remote.url, ref, credentials(remote)))

    async def _through_mirror(self, remote: Remote, act: Callable[[], Awaitable[T]]) -> T:
        """Once more with a new mirror if git fails for a reason that is not the forge's."""
        try:
            return await act()
        except GitFailed as error:
            if remote.local_name is not None:
                raise
            log.warning("a mirror is thrown away", remote=remote.url, error=str(error))
            await self._mirrors.discard(remote)
            return await act()

    def _local_repository(self, remote: Remote) -> Path | None:
        name = remote.local_name
        if name is None:
            return None
        if name not in self._local:
            raise BadRemote(f"this orchestrator keeps no repository {name!r}")
        return self._local[name]
