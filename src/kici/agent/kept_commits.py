"""The commits that a job starts with, without their history, brought with what a mirror has lent."""

from __future__ import annotations

from msgspec import Struct

from kici.agent import fetching, repository
from kici.agent.fetching import Say
from kici.agent.git import Git, Remote
from kici.agent.kept_packs import Manifest, Pack

MAX_TIPS = 100
MAX_LENT_TIPS = 16
"""What a job tells the server that it has: git's first question holds so many."""


class Commits(Struct, frozen=True):
    """See `kici.agent.mirrors.Wanted`."""

    git: Git
    source: Remote
    names: tuple[str, ...]
    ref: str
    say: Say

    def of_use(self, kept: Manifest) -> Manifest | None:
        return None if kept.is_full and not kept.has(self.names) else kept

    async def bring_with(self, lent: Manifest) -> None:
        git, source, names = self.git, self.source, self.names
        if lent.has(names):
            tags = await fetching.tags_at(git, source, names, self.say)
            if all(tag.object in lent.tags for tag in tags if tag.is_annotated):
                repository.set_packed_refs(git, fetching.numbered(names) | {tag.name: tag.object for tag in tags})
                repository.set_shallow(git, [sha for sha in lent.shallow if sha in names])
                return
        repository.lend_refs(git, lent.tips[:MAX_LENT_TIPS])
        repository.set_shallow(git, lent.shallow)
        await fetching.by_name(git, source, names, self.say)
        repository.take_back_refs(git)
        repository.set_shallow(git, [sha for sha in repository.shallow(git) if sha in names])
        await repository.keep_tags_at(git, names)

    async def bring_alone(self) -> bool:
        # What only a ref led to may be anything.
        return await fetching.commits(self.git, self.source, self.names, self.ref, self.say)

    def is_new(self, kept: Manifest | None, lent: Manifest | None) -> bool:
        return kept is None or not kept.has(self.names) or not self._annotated() <= set(kept.tags)

    def grown(self, kept: Manifest, taken: tuple[Pack, ...]) -> Manifest:
        tips = tuple(dict.fromkeys([*self.names, *kept.tips]))[:MAX_TIPS]
        cut = {*kept.shallow, *repository.shallow(self.git)}
        return Manifest(
            packs=(*kept.packs, *taken),
            tips=tips,
            shallow=tuple(tip for tip in tips if tip in cut),
            tags=tuple(sorted({*kept.tags, *self._annotated()})),
        )

    def _annotated(self) -> set[str]:
        return set(repository.tags(self.git).values()) - set(self.names)
