"""The caches that definitions name: restored before a step or command, saved after its success."""

from __future__ import annotations

from collections.abc import Iterable

from kici.engine.lockfile import LockCache
from kici.errors import KiciError
from kici.runner.acts import Acts
from kici.runner.cache_files import CacheFiles
from kici.runner.context import template_fields


class Caches:
    """Those that definitions name: nothing that goes wrong with them fails anything; it is told in the step's log."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self._found: dict[tuple[str, tuple[str, ...]], str] = {}
        """Key and paths of what was restored → the key that was found."""

    def beside(self, acts: Acts) -> Caches:
        other = Caches(acts)
        other._found = self._found
        return other

    async def restore(self, index: int, caches: Iterable[LockCache]) -> None:
        for cache in caches:
            try:
                files = self._files()
                key, prefixes = files.key(cache.key), [files.key(prefix) for prefix in cache.restore]
                found = await files.restore(key, cache.paths, prefixes)
            except (KiciError, OSError) as error:
                self._acts.say(index, f"cache: {error}; going on without it")
                continue
            self._found[key, cache.paths] = found
            if found == key:
                self._acts.say(index, f"cache: restored {key}")
            else:
                self._acts.say(index, f"cache: no {key}, restored {found}" if found else f"cache: no {key}")

    async def save(self, index: int, caches: Iterable[LockCache]) -> None:
        """Those whose very key was not found. The key is that of the files as they are now."""
        for cache in caches:
            try:
                files = self._files()
                key = files.key(cache.key)
                if self._found.get((key, cache.paths)) == key:
                    self._acts.say(index, f"cache: {key} is there already")
                    continue
                missing = await files.save(key, cache.paths)
            except (KiciError, OSError) as error:
                self._acts.say(index, f"cache: {error}; going on without it")
                continue
            self._acts.say(index, f"cache: saved {key}" + (f", without {missing}" if missing else ""))

    def _files(self) -> CacheFiles:
        state = self._acts.state
        return CacheFiles(state.root, state.transfers, template_fields(state.facts))
