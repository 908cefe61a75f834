"""Caches leave alone what belongs to the developer.

Without a sandbox, the home directory of a local run is the developer's own, and with `--in-place` so is the checkout.
What a cache would bring there stands there already, newer than any entry: restoring would put old files over it, and
saving would pack all of, for example, `~/.cache/uv`.
"""

from __future__ import annotations

from msgspec.structs import replace

from kici.engine.lockfile import LockCache, LockJob, LockStep


def left_alone(job: LockJob, *, home: bool, checkout: bool) -> LockJob:
    """The job without the paths of its caches that lie in the developer's home directory or checkout."""
    if not (home or checkout) or not any(step.caches for step in job.steps):
        return job

    def kept(cache: LockCache) -> LockCache:
        paths = (path for path in cache.paths if not (home if path.startswith("~/") else checkout))
        return replace(cache, paths=tuple(paths))

    def without(step: LockStep) -> LockStep:
        return replace(step, caches=tuple(cache for cache in map(kept, step.caches) if cache.paths))

    return replace(job, steps=tuple(without(step) if step.caches else step for step in job.steps))
