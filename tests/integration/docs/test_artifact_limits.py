"""What the pages say of the limits of artifacts is so."""

from __future__ import annotations

from pathlib import Path

from kici.orchestrator.caches.artifact_limits import Limits
from kici.orchestrator.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
GIB = 1024**3


def test_the_limits_are_those_of_the_settings_and_of_the_pages() -> None:
    limits, settings = Limits(), Settings()
    assert (limits.max_bytes, limits.per_run, limits.quota_bytes) == (
        settings.artifact_max_bytes,
        settings.artifacts_per_run,
        settings.artifact_quota_bytes,
    )
    for page in ("operator/running.md", "operator/object-storage.md"):
        text = (DOCS / page).read_text()
        assert f"| `KICI_ARTIFACT_MAX_BYTES` | {limits.max_bytes} ({limits.max_bytes // GIB} GiB) |" in text
        assert f"| `KICI_ARTIFACTS_PER_RUN` | {limits.per_run} |" in text
        assert f"| `KICI_ARTIFACT_QUOTA_BYTES` | {limits.quota_bytes} ({limits.quota_bytes // GIB} GiB) |" in text
    assert (limits.of_pull_requests, limits.of_one_pull_request) == (limits.quota_bytes // 2, limits.quota_bytes // 4)
    user = " ".join((DOCS / "user/writing-workflows.md").read_text().split())
    assert (
        f"One has up to {limits.max_bytes // GIB} GiB, compressed, a run up to {limits.per_run} of them, and a"
        f" repository up to {limits.quota_bytes // GIB} GiB, of which pull requests have half together and a"
        " quarter each"
    ) in user
