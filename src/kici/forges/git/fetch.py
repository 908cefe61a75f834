"""What the pipeline asks of a repository, wherever it is: files at a commit, differences, what a ref means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

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

    async def changed(self, remote: Remote, base: str, head: str, *, since_merge_base: bool) -> tuple[str, ...] | None:
        """Files that differ between the commits, with `since_merge_base` between where they went apart and `head`.

        None if that is not known: one commit is gone or never was, or there are too many.
        """
        if not base or not head:
            return None
        check_sha(base)
        check_sha(head)

        async def compare() -> tuple[str, ...] | None:
            return await self._changed(remote, base, head, since_merge_base=since_merge_base)

        try:
            return await self._through_mirror(remote, compare)
        except CommitMissing:
            return None

    async def _changed(self, remote: Remote, base: str, head: str, *, since_merge_base: bool) -> tuple[str, ...] | None:
        local = self._local_repository(remote)
        if since_merge_base:
            history = local or await self._mirrors.with_history(remote, [base, head])
            parted = await changed.merge_base(history, base, head)
            if parted is None:
                return None
            base = parted
        return await changed.changed_files(local or await self._mirrors.with_trees(remote, [base, head]), base, head)

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
