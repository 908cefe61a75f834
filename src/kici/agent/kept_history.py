"""The whole history of a repository, brought with what a mirror has lent.

A mirror of the history has no commit whose parents are missing, so what it lends counts for git as what any clone has.
The job's repository is made anew for it: the commits that it had were cut from their parents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from kici.agent import fetching, repository
from kici.agent.fetching import Say
from kici.agent.git import Git, Remote
from kici.agent.kept_packs import Manifest, Pack, new

MAX_TIPS = 20_000


class History(Struct, frozen=True):
    """See `kici.agent.mirrors.Wanted`."""

    git: Git
    source: Remote
    names: tuple[str, ...]
    ref: str
    say: Say
    tags: bool
    """All; else those that something of the history is tagged with."""
    commits: Callable[[], Awaitable[None]]
    """Brings the commits again."""

    def of_use(self, kept: Manifest) -> Manifest | None:
        """One that grows no more lends its first fetch alone: all that is new since comes as one pack then."""
        if not kept.is_full or kept.has(self.names):
            return kept
        if kept.is_large:
            return None
        return msgspec.structs.replace(kept, packs=kept.packs[: kept.first], tips=kept.first_tips)

    async def bring_with(self, lent: Manifest) -> None:
        repository.lend_refs(self.git, lent.tips)
        await fetching.all_history(self.git, self.source, self.names, tags=self.tags, say=self.say)
        repository.take_back_refs(self.git)
        if not self.tags:
            await repository.keep_tags_of_history(self.git)

    async def bring_alone(self) -> bool:
        if not repository.packs(self.git).exists():
            await self.commits()
        return await fetching.history(
            self.git, self.source, self.names, self.ref, depth=0, tags=self.tags, say=self.say
        )

    def is_new(self, kept: Manifest | None, lent: Manifest | None) -> bool:
        if repository.shallow(self.git):
            return False  # the server itself has no more
        # What came without the mirror is everything once more.
        return kept is None or (lent is not None and bool(new(repository.packs(self.git), kept.packs)))

    def grown(self, kept: Manifest, taken: tuple[Pack, ...]) -> Manifest:
        now = tuple(dict.fromkeys([*self.names, *repository.refs(self.git).values()]))[:MAX_TIPS]
        if not kept.packs:
            return Manifest(packs=taken, tips=now, first=len(taken), first_tips=now)
        tips = tuple(dict.fromkeys([*now, *kept.tips]))[:MAX_TIPS]
        return msgspec.structs.replace(kept, packs=(*kept.packs, *taken), tips=tips)
