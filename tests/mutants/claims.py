"""Who gets a job: claims, their numbers, and what takes them back."""

from __future__ import annotations

from tests.mutants.mutation import LIFECYCLE, STORE, Mutation

QUEUE = "integration/store/test_queue.py"
WRITER = "integration/lifecycle/test_status_writer.py"
LOSS = "integration/lifecycle/test_loss.py"
AGAIN = "integration/maintenance/test_looking_again.py"
LOST = "integration/maintenance/test_lost_agents.py"

MUTATIONS = (
    Mutation(
        "a-claimed-row-is-claimed-again",
        f"{STORE}/lanes.py",
        "where q.session_id is null and q.not_before <= now()",
        "where q.not_before <= now()",
        (f"{QUEUE}::test_inside_a_lane_age_decides_and_priority_is_worth_some_of_it",),
    ),
    Mutation(
        "a-claim-waits-for-a-row-that-somebody-has",
        f"{STORE}/lanes.py",
        "                 for update skip locked\n",
        "                 for update\n",
        (f"{QUEUE}::test_a_row_that_somebody_has_locked_is_passed_over",),
    ),
    Mutation(
        "a-lapsed-coordinator-claims",
        f"{STORE}/lanes.py",
        "c.instance = $6 and c.lease_expires_at > clock_timestamp()",
        "c.instance = $6",
        (f"{QUEUE}::test_a_lapsed_coordinator_and_a_lost_session_get_nothing",),
    ),
    Mutation(
        "a-lost-session-is-sent-jobs",
        f"{STORE}/lanes.py",
        " and s.closed_at is null and s.lost_at is null",
        "",
        (f"{QUEUE}::test_a_lapsed_coordinator_and_a_lost_session_get_nothing",),
    ),
    Mutation(
        "a-claim-has-the-number-of-the-one-before",
        f"{STORE}/lanes.py",
        "attempt = q.attempt + 1,",
        "attempt = greatest(q.attempt, 1),",
        (f"{QUEUE}::test_a_released_row_keeps_its_place_and_its_next_claim_the_next_number",),
    ),
    Mutation(
        "a-job-token-outlives-its-attempt",
        f"{STORE}/queue.py",
        "set session_id = null, job_token_hash = null,",
        "set session_id = null,",
        (f"{QUEUE}::test_the_token_of_an_attempt_ends_when_its_job_goes_back_to_the_queue",),
    ),
    Mutation(
        "a-rejection-uses-up-an-attempt",
        f"{STORE}/queue.py",
        "rejections = q.rejections + r.given_back::int",
        "rejections = q.rejections",
        (f"{WRITER}::test_a_rejection_gives_the_claim_back_a_little_later_each_time",),
    ),
    Mutation(
        "attempts-have-no-end",
        f"{LIFECYCLE}/retry.py",
        "if used >= limits.max_attempts:",
        "if False:",
        ("integration/maintenance/test_requeue_unacknowledged.py::test_the_fifth_unanswered_dispatch_is_the_last",),
    ),
    Mutation(
        "a-job-that-has-been-claimed-expires",
        f"{LIFECYCLE}/expiry.py",
        " and locked.queue[job_id].session_id is None",
        "",
        (f"{AGAIN}::test_a_job_that_finds_an_agent_in_the_last_moment_does_not_expire",),
    ),
    Mutation(
        "an-accepted-job-is-taken-back",
        "src/kici/orchestrator/maintenance/requeue_unacknowledged.py",
        "(row.attempt, row.session_id) == (one.attempt, one.session_id) and row.accepted_at is None",
        "row.attempt > 0",
        (f"{AGAIN}::test_an_acceptance_in_the_last_moment_keeps_the_job",),
    ),
    Mutation(
        "a-deadline-that-was-lifted-counts",
        "src/kici/orchestrator/maintenance/settle_overdue.py",
        "passed = await jobs.past_deadlines(db, locked.jobs)",
        'passed = dict.fromkeys(locked.jobs, "recovery")',
        (f"{AGAIN}::test_an_agent_that_is_back_in_the_last_moment_keeps_its_job",),
    ),
    Mutation(
        "user-code-that-has-begun-runs-again-unasked",
        f"{LIFECYCLE}/retry.py",
        "return None if user_code_began else 0.0",
        "return 0.0",
        (f"{LOSS}::test_once_user_code_may_have_begun_it_does_not",),
    ),
    Mutation(
        "the-next-attempt-starts-without-a-margin",
        f"{LIFECYCLE}/loss.py",
        "retry_s=limits.recovery_s + limits.overlap_margin_s if retries else None",
        "retry_s=limits.recovery_s if retries else None",
        (f"{LOSS}::test_silence_sets_deadlines_that_count_from_our_last_acknowledgement",),
    ),
    Mutation(
        "silent-agents-have-no-report-window",
        f"{LIFECYCLE}/loss.py",
        "retry_s=limits.recovery_s + limits.overlap_margin_s if retries else None",
        "retry_s=limits.recovery_s + limits.overlap_margin_s",
        (f"{LOST}::test_without_a_policy_the_agent_may_report_until_the_window_closes",),
    ),
    Mutation(
        "a-cancelled-job-that-was-lost-runs-again",
        f"{LIFECYCLE}/loss.py",
        "        if job.status is JobStatus.CANCELLING:\n"
        "            ends.append(of_stopped(job, JobEvent.COMPLETE, why))\n"
        "        elif",
        "        if",
        (
            "integration/lifecycle/test_cancel.py::test_a_cancelled_job_whose_agent_lost_it_is_cancelled_and_not_run_again",
        ),
    ),
)
