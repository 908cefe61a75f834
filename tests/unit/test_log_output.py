from __future__ import annotations

import pytest

from kici.orchestrator.log_output import hide_passwords


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (
            "cannot connect to postgresql://kici:s3cret@db:5432/kici",
            "cannot connect to postgresql://kici:***@db:5432/kici",
        ),
        ("https://x:token@forge/repo.git failed", "https://x:***@forge/repo.git failed"),
        ("http://127.0.0.1:4000/health", "http://127.0.0.1:4000/health"),
        ("plain text", "plain text"),
    ],
)
def test_the_password_of_a_url_is_not_said(said: str, seen: str) -> None:
    assert hide_passwords(None, "info", {"event": said, "n": 1}) == {"event": seen, "n": 1}
