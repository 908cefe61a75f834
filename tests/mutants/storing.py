"""What is stored once, and in which order rows are locked."""

from __future__ import annotations

from tests.mutants.mutation import LIFECYCLE, MIGRATIONS, STORE, Mutation

FIRST = f"{MIGRATIONS}/0001_foundation.up.sql"
SECOND = f"{MIGRATIONS}/0002_lifecycle_and_queue.up.sql"
KEYS = "integration/store/test_natural_keys.py"
ONCE = f"{KEYS}::test_a_second_row_for_the_same_thing_is_refused"
CLAIMS = "integration/pipeline/test_claims.py"
ORDER = "integration/lifecycle/test_lock_order.py"
RACES = "integration/lifecycle/test_concurrency_races.py"
GROUPS = "integration/lifecycle/test_concurrency.py"

MUTATIONS = (
    Mutation(
        "no-key-of-event-log",
        FIRST,
        "create unique index event_log_org_delivery_idx",
        "create index event_log_org_delivery_idx",
        ("integration/store/test_events.py::test_what_is_there_or_comes_twice_in_a_batch_is_one_row",),
    ),
    Mutation(
        "no-key-execution-runs-event-workflow",
        FIRST,
        "create unique index execution_runs_event_workflow",
        "create index execution_runs_event_workflow",
        (f"{ONCE}[execution_runs-execution_runs_event_workflow]",),
    ),
    Mutation(
        "no-key-idx-execution-steps-unique",
        FIRST,
        "constraint idx_execution_steps_unique unique (run_id, job_id, attempt, step_index)",
        "constraint idx_execution_steps_unique check (attempt > 0)",
        (f"{ONCE}[execution_steps-idx_execution_steps_unique]",),
    ),
    Mutation(
        "no-key-artifacts-run-name",
        FIRST,
        "constraint artifacts_run_name unique (run_id, name)",
        "constraint artifacts_run_name check (name <> '')",
        (f"{ONCE}[artifacts-artifacts_run_name]",),
    ),
    Mutation(
        "no-key-outbox-dedupe",
        FIRST,
        "dedupe_key text not null unique,",
        "dedupe_key text not null,",
        (f"{ONCE}[outbox-outbox_dedupe_key_key]",),
    ),
    Mutation(
        "no-key-concurrency-groups-holder",
        SECOND,
        "create unique index concurrency_groups_holder",
        "create index concurrency_groups_holder",
        (f"{ONCE}[concurrency_groups-concurrency_groups_holder]",),
    ),
    Mutation(
        "no-key-execution-runs-rerun",
        SECOND,
        "create unique index execution_runs_rerun",
        "create index execution_runs_rerun",
        (f"{KEYS}::test_a_rerun_is_made_once_for_each_request",),
    ),
    Mutation(
        "an-event-that-is-processed-twice-fails",
        f"{STORE}/runs.py",
        "        on conflict do nothing\n",
        "",
        (f"{CLAIMS}::test_an_event_that_is_processed_a_second_time_makes_no_second_run",),
    ),
    Mutation(
        "a-worker-that-lost-its-event-writes",
        "src/kici/orchestrator/pipeline/commit.py",
        "            await event_claims.guard(db, claim)\n",
        "",
        (f"{CLAIMS}::test_a_worker_that_lost_its_event_writes_nothing",),
    ),
    Mutation(
        "two-workers-claim-the-same-event",
        f"{STORE}/event_claims.py",
        "             for update skip locked\n",
        "",
        (f"{CLAIMS}::test_an_event_that_is_being_claimed_is_passed_over",),
    ),
    Mutation(
        "webhooks-are-answered-before-the-commit",
        "src/kici/orchestrator/intake/event_writer.py",
        "return await self._commits.submit(event)",
        '__import__("asyncio").ensure_future(self._commits.submit(event))\n        return True',
        ("integration/intake/test_webhooks.py::test_a_delivery_is_committed_before_it_is_accepted",),
    ),
    Mutation(
        "work-of-the-outbox-is-removed-by-whoever-was-slow",
        f"{STORE}/outbox.py",
        'await db.execute("delete from outbox where id = $1 and attempts = $2", claim.id, claim.attempts)',
        'await db.execute("delete from outbox where id = $1 and $2::int > 0", claim.id, claim.attempts)',
        ("integration/store/test_outbox.py::test_a_worker_whose_claim_ran_out_does_not_touch_the_row_any_more",),
    ),
    Mutation(
        "two-workers-claim-the-same-work",
        f"{STORE}/outbox.py",
        "order by due_at limit $2 for update skip locked",
        "order by due_at limit $2",
        ("integration/store/test_outbox.py::test_a_row_that_is_being_claimed_is_passed_over",),
    ),
    Mutation(
        "every-wake-up-is-a-notification",
        f"{STORE}/notify.py",
        "            if wait > 0:\n",
        "            if False:\n",
        (
            "integration/store/test_notify.py::"
            "test_the_first_goes_at_once_and_what_follows_within_the_interval_goes_as_one",
        ),
    ),
    Mutation(
        "runs-are-locked-in-any-order",
        f"{STORE}/run_states.py",
        "where run_id = any($1::uuid[]) order by run_id\n           for no key update",
        "where run_id = any($1::uuid[]) order by run_id desc\n           for no key update",
        (f"{ORDER}::test_rows_of_one_table_are_locked_by_their_ids",),
    ),
    Mutation(
        "jobs-are-locked-in-any-order",
        f"{STORE}/jobs.py",
        'order by job_id for no key update {"skip locked" if skip_locked else "" if wait else "nowait"}',
        'order by job_id desc for no key update {"skip locked" if skip_locked else "" if wait else "nowait"}',
        (f"{ORDER}::test_rows_of_one_table_are_locked_by_their_ids",),
    ),
    Mutation(
        "queue-rows-are-locked-in-any-order",
        f"{STORE}/queue.py",
        "where id = any($1::uuid[]) order by id\n           for update",
        "where id = any($1::uuid[]) order by id desc\n           for update",
        (f"{ORDER}::test_rows_of_one_table_are_locked_by_their_ids",),
    ),
    Mutation(
        "jobs-are-locked-before-their-runs",
        f"{LIFECYCLE}/locked.py",
        "    locked.runs = await run_states.lock(db, {place.run_id for place in places.values()})\n"
        "    locked.jobs = await jobs.lock(db, places)\n",
        "    locked.jobs = await jobs.lock(db, places)\n"
        "    locked.runs = await run_states.lock(db, {place.run_id for place in places.values()})\n",
        (f"{ORDER}::test_the_kinds_of_rows_are_locked_in_one_order",),
    ),
    Mutation(
        "runs-are-locked-before-their-scopes",
        f"{LIFECYCLE}/locked.py",
        "    await concurrency.lock_scopes(db, {scope for scope in scopes.values() if scope})\n"
        "    locked.runs = await run_states.lock(db, scopes)\n",
        "    locked.runs = await run_states.lock(db, scopes)\n"
        "    await concurrency.lock_scopes(db, {scope for scope in scopes.values() if scope})\n",
        (f"{ORDER}::test_the_kinds_of_rows_are_locked_in_one_order",),
    ),
    Mutation(
        "scopes-are-not-locked",
        f"{STORE}/concurrency.py",
        "    if scopes:\n        await db.execute(\n",
        "    if scopes and False:\n        await db.execute(\n",
        (f"{ORDER}::test_the_kinds_of_rows_are_locked_in_one_order",),
    ),
    Mutation(
        "a-slot-stays-with-a-holder-that-ended",
        f"{LIFECYCLE}/end.py",
        "await concurrency.hand_over(db, locked, freed)",
        "await concurrency.hand_over(db, locked, set())",
        (f"{GROUPS}::test_the_end_of_a_run_however_it_ends_hands_its_slot_over",),
    ),
    Mutation(
        "a-group-has-any-number-of-holders",
        "src/kici/engine/concurrency.py",
        "return len(together) <= min(entry.max for entry in together)",
        "return True",
        (f"{GROUPS}::test_up_to_max_run_at_a_time",),
    ),
)
