"""What is counted, after the commit, of who may start: concurrency groups and windows of fan-outs."""

from __future__ import annotations

from prometheus_client import Counter

_JOINED = Counter(
    "kici_concurrency_joined_total",
    "Runs and jobs that joined a concurrency group, and whether they had a slot at once or wait",
    ["outcome"],
)
STARTED_AT_ONCE = _JOINED.labels("started")
WAITS = _JOINED.labels("waits")

HANDED_OVER = Counter("kici_concurrency_handed_over_total", "Slots of concurrency groups that were handed to a waiter")

_SUPERSEDED = Counter(
    "kici_concurrency_superseded_total",
    "Runs and jobs that a newer one of their concurrency group took the place of: while they waited, or held a slot",
    ["what"],
)
SUPERSEDED_WAITERS = _SUPERSEDED.labels("waiter")
SUPERSEDED_HOLDERS = _SUPERSEDED.labels("holder")

HALTED = Counter("kici_fan_out_halted_total", "Fan-outs that fail_fast ended while some of their jobs were open")
