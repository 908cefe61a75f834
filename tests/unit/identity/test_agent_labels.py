from __future__ import annotations

from kici.orchestrator.identity.agent_labels import refused

AUTOMATIC = ["kici:os:linux", "kici:arch:x64", "kici:host:build-1"]


def test_labels_beyond_the_tokens_are_refused_and_the_automatic_ones_are_exempt() -> None:
    assert refused(["docker"], [*AUTOMATIC, "docker", "gpu", "big"]) == ["big", "gpu"]
    assert refused([], AUTOMATIC) == []


def test_a_token_without_a_bound_allows_all_labels_but_our_own() -> None:
    assert refused(None, [*AUTOMATIC, "gpu", "kici:scaler:pool-1"]) == ["kici:scaler:pool-1"]


def test_a_label_of_ours_comes_with_a_token_that_names_it() -> None:
    assert refused(["kici:scaler:pool-1"], ["kici:scaler:pool-1"]) == []
