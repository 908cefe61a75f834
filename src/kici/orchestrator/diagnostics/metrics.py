"""`/metrics`, in Prometheus' text format 0.0.4. A part defines its own metrics next to its code."""

from __future__ import annotations

from typing import Any

from litestar import Response, get
from prometheus_client import REGISTRY, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4"  # the charset is added to it


def routes() -> list[Any]:
    @get("/metrics", sync_to_thread=False, media_type=CONTENT_TYPE, tags=["diagnostics"])
    def metrics() -> Response[bytes]:
        """Counters and gauges of this process."""
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE)

    return [metrics]
