"""What workflows cause: who is told of ends, and how much may come of it."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PIPELINE = "src/kici/orchestrator/pipeline"
STORE = "src/kici/orchestrator/store"
STARTED = "integration/pipeline/test_completions.py"
TOLD = "integration/lifecycle/test_completions.py"

MUTATIONS = (
    Mutation(
        "pull-requests-start-workflows-of-the-default-branch",
        f"{STORE}/completions.py",
        "coalesce(r.trust_tier, '') <> 'unknown'",
        "true",
        (f"{TOLD}::test_a_pull_request_starts_no_workflow_of_the_default_branch_by_its_end",),
    ),
    Mutation(
        "ends-that-a-rerun-takes-over-are-told-again",
        f"{STORE}/completions.py",
        "and j.reused_from is null ",
        "",
        (f"{TOLD}::test_what_is_born_ended_is_told_and_what_a_rerun_takes_over_is_not",),
    ),
    Mutation(
        "a-circle-of-ends-goes-on",
        f"{PIPELINE}/registered.py",
        "if ended.chain_depth > MAX_CHAIN_DEPTH:",
        "if False:",
        (f"{STARTED}::test_a_circle_of_ends_stops_with_the_reason",),
    ),
    Mutation(
        "two-coordinators-count-the-same-events",
        f"{PIPELINE}/commit.py",
        "await caused.lock(db, result.cause)",
        "pass",
        (f"{STARTED}::test_of_many_events_of_a_workflow_only_so_many_a_minute_start_runs",),
    ),
    Mutation(
        "events-of-workflows-are-not-counted",
        f"{PIPELINE}/commit.py",
        "if count < per_minute:",
        "if True:",
        (f"{STARTED}::test_of_many_events_of_a_workflow_only_so_many_a_minute_start_runs",),
    ),
)
