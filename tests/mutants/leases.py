"""Sessions and leases: who speaks for an agent, who leads, and who has slept."""

from __future__ import annotations

from tests.mutants.mutation import LIFECYCLE, STORE, Mutation

LEASE = "integration/store/test_lease.py"
SESSIONS = "integration/store/test_sessions.py"
SOCKET = "integration/agents/test_socket.py"
LOSS = "integration/lifecycle/test_loss.py"
AGAIN = "integration/maintenance/test_looking_again.py"

MUTATIONS = (
    Mutation(
        "a-replaced-leader-writes",
        "src/kici/orchestrator/leader_service.py",
        "            await lease.guard(db, self._held)\n",
        "",
        ("integration/maintenance/test_end_stale_waits.py::test_a_leader_that_was_replaced_writes_nothing",),
    ),
    Mutation(
        "a-lease-changes-hands-under-its-holder",
        f"{STORE}/lease.py",
        "expires_at > clock_timestamp() for share",
        "expires_at > clock_timestamp()",
        (f"{LEASE}::test_it_does_not_change_hands_while_somebody_acts_under_it",),
    ),
    Mutation(
        "an-expired-lease-is-one",
        f"{STORE}/lease.py",
        " and expires_at > clock_timestamp()",
        "",
        (f"{LEASE}::test_an_expired_holder_may_not_act_even_if_nobody_followed",),
    ),
    Mutation(
        "a-leases-token-is-not-compared",
        f"{STORE}/lease.py",
        "select true from leases where name = $1 and token = $2",
        "select true from leases where name = $1 and $2::bigint > 0",
        (f"{LEASE}::test_whoever_held_it_before_does_not_hold_it_again_by_its_name",),
    ),
    Mutation(
        "a-leases-token-never-changes",
        f"{STORE}/lease.py",
        "token = l.token + (l.holder <> excluded.holder)::int",
        "token = l.token",
        (f"{LEASE}::test_a_new_holder_gets_a_new_token",),
    ),
    Mutation(
        "a-held-lease-is-given-away",
        f"{STORE}/lease.py",
        " where l.holder = excluded.holder or l.expires_at < now()",
        "",
        (f"{LEASE}::test_a_held_lease_is_not_given_twice",),
    ),
    Mutation(
        "a-lapsed-coordinator-acts",
        f"{STORE}/sessions.py",
        "where instance = $1 and lease_expires_at > clock_timestamp() for key share",
        "where instance = $1 for key share",
        (f"{SESSIONS}::test_a_coordinator_whose_lease_has_lapsed_does_not_act",),
    ),
    Mutation(
        "a-coordinators-sessions-are-taken-while-it-acts",
        f"{STORE}/sessions.py",
        "where instance = $1 and lease_expires_at > clock_timestamp() for key share",
        "where instance = $1 and lease_expires_at > clock_timestamp()",
        (f"{SESSIONS}::test_nobody_takes_a_coordinators_sessions_while_it_acts_under_its_lease",),
    ),
    Mutation(
        "a-coordinator-comes-back-while-its-sessions-are-taken",
        f"{STORE}/sessions.py",
        "from coordinators where instance = $1 for update",
        "from coordinators where instance = $1",
        (f"{SESSIONS}::test_a_coordinator_does_not_come_back_while_its_sessions_are_taken",),
    ),
    Mutation(
        "a-coordinator-that-is-back-loses-its-agents",
        "src/kici/orchestrator/maintenance/lose_sessions.py",
        "if not await sessions.still_silent(db, session):",
        "await sessions.still_silent(db, session)\n            if False:",
        (f"{AGAIN}::test_a_coordinator_that_renews_in_the_last_moment_keeps_its_agents",),
    ),
    Mutation(
        "a-session-is-lost-while-a-job-starts-under-it",
        f"{STORE}/sessions.py",
        '{"for share skip locked" if keep else ""}',
        "",
        (f"{SESSIONS}::test_a_session_under_which_a_job_starts_is_not_lost_before_the_commit",),
    ),
    Mutation(
        "an-agents-name-is-taken-over-by-another-token",
        f"{LIFECYCLE}/agent_sessions.py",
        "if any(_is_there(one, is_dropped) for one in older if one.id not in ours):",
        "if False:",
        (f"{SOCKET}::test_an_agent_id_that_lives_under_another_token_is_refused",),
    ),
    Mutation(
        "an-agent-whose-socket-is-gone-keeps-its-name",
        f"{LIFECYCLE}/agent_sessions.py",
        " and not is_dropped(session.id)",
        "",
        (f"{SOCKET}::test_an_agent_whose_token_was_renewed_comes_back_but_does_not_inherit",),
    ),
    Mutation(
        "another-tokens-attempts-are-inherited",
        f"{LIFECYCLE}/agent_sessions.py",
        "return row.attempt == ref.attempt and row.session_id in ours",
        "return row.attempt == ref.attempt",
        (f"{SOCKET}::test_an_agent_whose_token_was_renewed_comes_back_but_does_not_inherit",),
    ),
    Mutation(
        "an-older-attempt-goes-on-after-a-hello",
        f"{LIFECYCLE}/agent_sessions.py",
        "return row.attempt == ref.attempt and row.session_id in ours",
        "return True",
        (f"{LOSS}::test_an_older_attempt_in_the_list_is_to_be_forgotten_while_another_runs_elsewhere",),
    ),
    Mutation(
        "an-agents-older-sessions-stay-open",
        f"{LIFECYCLE}/agent_sessions.py",
        "    await sessions.close(db, all_ids)\n",
        "",
        (f"{LOSS}::test_a_hello_closes_the_sessions_that_its_agent_had",),
    ),
    Mutation(
        "right-after-an-outage-agents-are-blamed",
        f"{STORE}/outages.py",
        "    return not settled\n",
        "    return False\n",
        ("integration/maintenance/test_requeue_unacknowledged.py::test_right_after_an_outage_nothing_is_taken_back",),
    ),
    Mutation(
        "a-gap-of-the-lease-is-forgotten",
        f"{STORE}/coordinators.py",
        "case when c.lease_expires_at < clock_timestamp() then clock_timestamp()",
        "case when false then clock_timestamp()",
        (
            "integration/cluster/test_coordinator_lease.py::"
            "test_renewed_in_time_it_is_held_since_the_beginning_and_after_a_gap_since_its_end",
        ),
    ),
)
