"""The caches that definitions name: restored before a step or command, saved after its success."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from kici.engine.lockfile import LockCache
from kici.errors import KiciError
from kici.runner.acts import Acts
from kici.runner.cache_files import CacheFiles
from kici.runner.context import template_fields


class Caches:
    """Nothing that goes wrong with them fails anything; it is told in the log of the step."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self._known: dict[LockCache, tuple[str, str]] = {}
        """What was looked for → its key, and the key that was found. The key counts for saving too: what the steps make
        may change the files that it stands for."""

    def beside(self, acts: Acts) -> Caches:
        other = Caches(acts)
        other._known = self._known
        return other

    async def restore(self, index: int, caches: Iterable[LockCache]) -> None:
        for cache in caches:
            await self._told(index, self._restored(cache))

    async def save(self, index: int, caches: Iterable[LockCache]) -> None:
        """Those whose very key was not found."""
        for cache in caches:
            await self._told(index, self._saved(cache))

    async def _restored(self, cache: LockCache) -> str:
        files = self._files()
        key = await asyncio.to_thread(files.key, cache.key)
        self._known[cache] = (key, "")
        prefixes = [await asyncio.to_thread(files.key, prefix) for prefix in cache.restore]
        found = await files.restore(key, cache.paths, prefixes)
        self._known[cache] = (key, found)
        if found == key:
            return f"restored {key}"
        return f"no {key}, restored {found}" if found else f"no {key}"

    async def _saved(self, cache: LockCache) -> str:
        files = self._files()
        key, found = self._known.get(cache) or (await asyncio.to_thread(files.key, cache.key), "")
        if found == key:
            return f"{key} is there already"
        missing = await files.save(key, cache.paths)
        return f"saved {key}" + (f", without {missing}" if missing else "")

    async def _told(self, index: int, work: Coroutine[Any, Any, str]) -> None:
        try:
            said = await self._acts.unless_cancelled(work)
        except (KiciError, OSError) as error:
            said = f"{error}; going on without it"
        self._acts.say(index, f"cache: {said}")

    def _files(self) -> CacheFiles:
        state = self._acts.state
        return CacheFiles(state.root, state.transfers, template_fields(state.facts))
