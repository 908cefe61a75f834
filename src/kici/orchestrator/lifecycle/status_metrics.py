"""What the status writer tells of itself."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

APPLY_S = Histogram(
    "kici_status_apply_seconds",
    "From an agent's message about a job to its commit",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
)
BATCH = Histogram(
    "kici_status_batch_messages",
    "Messages about jobs that were committed together",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)
PUT_OFF = Counter(
    "kici_status_put_off_total",
    "Messages that were tried again later: a row was locked elsewhere, the database was away, an earlier one waited",
)
REPEATED = Counter("kici_status_repeated_total", "Messages that had been committed before and were sent again")
REFUSED = Counter(
    "kici_status_refused_total",
    "Messages that were thrown away, by reason: attempt (an older one, or one never given), session (another agent has"
    " the job), ended (otherwise than told), unknown (no such job), invalid, poison (it could not be stored)",
    ["reason"],
)
