"""What the caches of jobs tell the operator."""

from __future__ import annotations

from prometheus_client import Counter

FINDS = Counter("kici_cache_finds_total", "Cache entries that jobs asked for, by outcome", ["outcome"])
SAVES = Counter("kici_cache_saves_total", "Cache entries that jobs sent whole, by outcome", ["outcome"])
EVICTED = Counter("kici_cache_evicted_total", "Cache entries that made room for others")
EXPIRED = Counter("kici_cache_expired_total", "Cache entries that nobody had found for the time to live")
DAMAGED = Counter("kici_cache_damaged_total", "Cache entries that were removed because their object was damaged")
PARTS = Counter(
    "kici_transfer_parts_total", "Parts of artifacts and cache entries, by direction and way", ["direction", "way"]
)
UPLOADS_EXPIRED = Counter("kici_uploads_expired_total", "Uploads that nobody had completed within a day")
ARTIFACTS_EXPIRED = Counter("kici_artifacts_expired_total", "Artifacts whose time was over")
