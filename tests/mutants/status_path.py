"""What agents say: fences by attempt and session, ends that stay, commits before answers."""

from __future__ import annotations

from tests.mutants.mutation import LIFECYCLE, STORE, Mutation

WRITER = "integration/lifecycle/test_status_writer.py"
CANCEL = "integration/lifecycle/test_cancel.py"

MUTATIONS = (
    Mutation(
        "messages-of-older-attempts-count",
        f"{LIFECYCLE}/batch.py",
        "if attempt < job.attempt:",
        "if False:",
        (f"{WRITER}::test_messages_of_an_older_attempt_are_refused",),
    ),
    Mutation(
        "attempts-that-were-never-given-count",
        f"{LIFECYCLE}/batch.py",
        "if attempt > job.attempt:",
        "if False:",
        (f"{WRITER}::test_an_attempt_of_another_agent_and_one_never_given_are_refused",),
    ),
    Mutation(
        "any-agent-may-tell-of-an-attempt",
        f"{LIFECYCLE}/batch.py",
        "if job.session_id != item.session.id:",
        "if False:",
        (f"{WRITER}::test_an_attempt_of_another_agent_and_one_never_given_are_refused",),
    ),
    Mutation(
        "closed-sessions-may-tell",
        f"{LIFECYCLE}/batch.py",
        "if state is not None and state.closed:",
        "if False:",
        (f"{WRITER}::test_a_closed_sessions_messages_are_left_to_the_newer_socket",),
    ),
    Mutation(
        "jobs-start-under-lost-sessions",
        f"{LIFECYCLE}/batch.py",
        "elif isinstance(item.frame, JobAccepted) and (state is None or state.lost):",
        "elif False:",
        (f"{WRITER}::test_a_job_does_not_start_under_a_lost_session_until_that_is_regained",),
    ),
    Mutation(
        "an-acceptance-needs-no-claim",
        f"{LIFECYCLE}/accept.py",
        "if row is None or row.attempt != one.attempt or row.session_id != one.session_id:",
        "if row is None:",
        (
            "integration/maintenance/test_requeue_unacknowledged.py::"
            "test_an_ack_after_the_deadline_is_refused_and_the_job_runs_elsewhere",
        ),
    ),
    Mutation(
        "a-rejection-takes-back-what-was-accepted",
        f"{LIFECYCLE}/batch.py",
        "                and row.accepted_at is None\n",
        "",
        (f"{WRITER}::test_a_rejection_of_what_was_accepted_changes_nothing",),
    ),
    Mutation(
        "a-rejection-of-another-attempt-takes-the-claim-back",
        f"{LIFECYCLE}/batch.py",
        "and (row.attempt, row.session_id) == (frame.attempt, item.session.id)",
        "and row.session_id is not None",
        (f"{WRITER}::test_a_rejection_of_somebody_elses_claim_changes_nothing",),
    ),
    Mutation(
        "a-job-that-has-ended-can-end-otherwise",
        "src/kici/engine/lifecycle.py",
        "return _JOB.get(state, {}).get(event)",
        "return _JOB.get(state, _JOB[J.RUNNING]).get(event)",
        ("unit/engine/test_lifecycle.py",),
    ),
    Mutation(
        "a-step-that-has-ended-can-begin-again",
        "src/kici/engine/lifecycle.py",
        "return _STEP.get(state, {}).get(event)",
        "return _STEP.get(state, _STEP[S.PENDING]).get(event)",
        (f"{WRITER}::test_a_late_start_never_overwrites_an_end",),
    ),
    Mutation(
        "a-run-that-has-ended-can-be-cancelled",
        f"{LIFECYCLE}/cancel.py",
        "if run.status in TERMINAL_RUN:",
        "if False:",
        (f"{CANCEL}::test_a_run_that_has_ended_or_never_was_cannot_be_cancelled",),
    ),
    Mutation(
        "agents-are-answered-before-the-commit",
        f"{LIFECYCLE}/writer.py",
        "        self.again(_Pending(self, item, on_answer))\n",
        "        self.again(_Pending(self, item, lambda answer: None))\n"
        "        from kici.orchestrator.lifecycle.frames import Taken\n"
        "        on_answer(Taken())\n",
        (f"{WRITER}::test_a_lapsed_coordinator_commits_nothing_until_it_has_its_lease_again",),
    ),
    Mutation(
        "statuses-are-written-without-the-lease",
        f"{LIFECYCLE}/writer.py",
        "                await self._hold(db)\n",
        "",
        (f"{WRITER}::test_a_lapsed_coordinator_commits_nothing_until_it_has_its_lease_again",),
    ),
    Mutation(
        "a-batch-waits-for-rows-that-are-locked",
        f"{STORE}/attempts.py",
        "where job_id = any($2::uuid[]) for no key update skip locked",
        "where job_id = any($2::uuid[]) for no key update",
        (f"{WRITER}::test_a_job_locked_elsewhere_waits_and_keeps_its_order_while_others_go_on",),
    ),
    Mutation(
        "later-messages-of-a-job-overtake-one-that-waits",
        f"{LIFECYCLE}/writer.py",
        "if (first := blocked_from[item.job_id]) is None or item.number < first",
        "if True",
        (f"{WRITER}::test_a_message_does_not_overtake_one_of_its_job_that_waits_for_a_row",),
    ),
    Mutation(
        "a-poisonous-message-takes-its-batch-with-it",
        f"{STORE}/group_commit.py",
        "            if len(batch) == 1:\n",
        "            for _, answer in batch[1:]:\n                answer.set_exception(error)\n            if batch:\n",
        ("unit/store/test_group_commit.py::test_every_item_is_answered_once_and_poison_harms_nobody_else",),
    ),
    Mutation(
        "deadlocks-are-not-tried-again",
        f"{STORE}/group_commit.py",
        "if not tries or not is_transient(error):",
        "if True:",
        ("unit/store/test_group_commit.py::test_a_deadlock_is_tried_again_with_bounds",),
    ),
    Mutation(
        "no-compaction-is-due-for-a-step-that-ended",
        f"{LIFECYCLE}/steps.py",
        " if write.status in TERMINAL_STEP and write.log_chunks != 0]",
        " if False]",
        (f"{WRITER}::test_the_same_message_twice_changes_nothing_and_is_taken_twice",),
    ),
)
