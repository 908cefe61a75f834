"""Logs and artifacts of attempts that are over."""

from __future__ import annotations

from tests.mutants.mutation import STORE, Mutation

WRITER = "integration/logs/test_writer.py"
COMPACT = "integration/logs/test_compact.py"
ARTIFACTS = "integration/caches/test_artifacts.py"
LOGS = f"{STORE}/logs.py"

MUTATIONS = (
    Mutation(
        "chunks-of-older-attempts-are-stored",
        LOGS,
        "when sent.attempt <> jobs.attempt",
        "when false",
        (f"{WRITER}::test_an_older_attempt_and_a_foreign_agent_are_refused",),
    ),
    Mutation(
        "chunks-of-other-agents-are-stored",
        LOGS,
        "when jobs.agent_id is null or owners.agent_id is distinct from jobs.agent_id",
        "when false",
        (f"{WRITER}::test_an_older_attempt_and_a_foreign_agent_are_refused",),
    ),
    Mutation(
        "a-closed-log-takes-chunks",
        LOGS,
        "when steps.closed then",
        "when false then",
        (f"{WRITER}::test_a_closed_log_takes_nothing_more",),
    ),
    Mutation(
        "a-chunk-that-comes-twice-fails",
        LOGS,
        "        on conflict (job_id, attempt, step_index, sequence, log_hour) do nothing\n",
        "",
        (f"{WRITER}::test_chunks_may_come_twice_and_in_any_order",),
    ),
    Mutation(
        "a-log-is-closed-twice",
        LOGS,
        "select log_lines is null from execution_steps where id = $1 for update",
        "select true from execution_steps where id = $1 for update",
        (f"{COMPACT}::test_two_coordinators_on_the_same_log_leave_one_object",),
    ),
    Mutation(
        "a-log-is-closed-while-a-chunk-is-stored",
        LOGS,
        " order by s.id for key share of s",
        " order by s.id",
        (f"{WRITER}::test_a_log_is_not_closed_while_a_chunk_of_it_is_stored",),
    ),
    Mutation(
        "an-artifacts-name-is-given-twice",
        f"{STORE}/artifacts.py",
        "on conflict (run_id, name) do nothing",
        "on conflict (run_id, name) do update set object_key = excluded.object_key",
        (f"{ARTIFACTS}::test_a_name_is_given_once_in_a_run",),
    ),
)
