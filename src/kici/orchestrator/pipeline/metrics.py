"""What the pipeline tells of itself."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

events = Counter("kici_pipeline_events", "Events that were worked on, by how that ended", ["status"])
event_seconds = Histogram(
    "kici_pipeline_event_seconds",
    "From the claim of an event to the commit of its runs",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 60),
)
