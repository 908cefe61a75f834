"""What attempts keep for others: secret outputs, events, cache entries."""

from __future__ import annotations

from tests.mutants.mutation import STORE, Mutation

SECRETS = "integration/api/test_secret_outputs.py"
EMIT = "integration/api/test_emit.py"
PERMISSIONS = "integration/api/test_permissions.py"
ENTRIES = "integration/caches/test_entries.py"
LIMITS = "integration/caches/test_artifact_limits.py"
ARTIFACTS = "integration/caches/test_artifacts.py"
UPLOADS = "integration/caches/test_uploads.py"
REQUESTS = "integration/agent/execution/test_requests.py"
ARCHIVE = "integration/runner/test_archive.py"
OBJECTS = "contract/objects/test_objects.py"
CACHES = "src/kici/orchestrator/caches"

MUTATIONS = (
    Mutation(
        "attempts-that-are-over-still-write",
        f"{STORE}/origins.py",
        "and j.attempt = $2 and j.status in ('running', 'recovering', 'cancelling')",
        "and $2::int > 0 and j.status in ('running', 'recovering', 'cancelling')",
        (
            f"{SECRETS}::test_only_what_the_last_attempt_handed_over_counts",
            f"{EMIT}::test_an_attempt_that_is_over_emits_nothing",
            f"{ENTRIES}::test_an_attempt_that_is_over_saves_nothing",
            f"{ARTIFACTS}::test_an_attempt_that_is_over_makes_nothing_visible",
        ),
    ),
    Mutation(
        "secrets-of-older-attempts-are-handed-over",
        f"{STORE}/secret_outputs.py",
        " and s.attempt = u.attempt",
        "",
        (f"{SECRETS}::test_only_what_the_last_attempt_handed_over_counts",),
    ),
    Mutation(
        "the-order-of-needs-does-not-count-for-secrets",
        f"{STORE}/secret_outputs.py",
        "), 0), u.position, s.name",
        ") * 0, 0), u.position, s.name",
        (f"{SECRETS}::test_of_one_name_the_later_job_in_needs_wins",),
    ),
    Mutation(
        "a-job-that-a-generator-makes-gives-itself-permissions",
        "src/kici/engine/plan.py",
        "        job = replace(job, permissions=frame.permissions)\n",
        "        job = replace(job, permissions=job.permissions or frame.permissions)\n",
        ("unit/engine/test_permissions.py::test_a_job_that_a_generator_makes_cannot_give_itself_more",),
    ),
    Mutation(
        "events-are-emitted-without-permission",
        "src/kici/orchestrator/api/emit.py",
        '        permitted.require(job, "events", permitted.WRITE)\n',
        "",
        (f"{PERMISSIONS}::test_an_attempt_may_do_what_its_workflow_says_and_else_is_told_what_it_would_have_to_say",),
    ),
    Mutation(
        "a-limit-is-raised",
        "src/kici/agent/sandbox/cgroups.py",
        "if value is None or (before is not None and value >= before):",
        "if value is None:",
        ("contract/sandbox/test_limits.py::test_no_limit_is_ever_raised",),
    ),
    Mutation(
        "a-key-is-published-twice",
        "src/kici/orchestrator/caches/entries.py",
        "        if await self._is_taken(db, entry):\n            return Outcome(False, _TAKEN)\n",
        "",
        (f"{ENTRIES}::test_of_many_that_save_one_key_at_once_one_wins_whole",),
    ),
    Mutation(
        "pull-requests-write-into-the-repositorys-scope",
        "src/kici/orchestrator/caches/scopes.py",
        """return f"{'trusted-pr-' if event.trust is Trust.TRUSTED else UNTRUSTED}{event.pr_number}\"""",
        "return DEFAULT_BRANCH",
        (f"{ENTRIES}::test_a_pull_request_reads_the_repositorys_and_its_own_and_writes_only_its_own",),
    ),
    Mutation(
        "branches-write-into-the-default-branchs-scope",
        "src/kici/orchestrator/caches/scopes.py",
        'return DEFAULT_BRANCH if branch in ("", event.default_branch) else _bounded(f"heads/{branch}")',
        "return DEFAULT_BRANCH",
        (f"{ENTRIES}::test_a_branch_reads_its_own_then_that_of_the_default_branch_and_writes_only_its_own",),
    ),
    Mutation(
        "pull-requests-are-kept-where-there-is-no-room",
        "src/kici/orchestrator/caches/entries.py",
        "if not origin.trusted and usage.trusted + size > quota:",
        "if usage.trusted < 0:",
        (f"{ENTRIES}::test_a_pull_request_evicts_nothing_of_the_repository",),
    ),
    Mutation(
        "caches-of-two-sources-are-one",
        f"{STORE}/caches.py",
        """and key collate "C" = $4""",
        """and key collate "C" = $4 or key = $4""",
        (f"{ENTRIES}::test_another_repository_and_another_source_of_the_same_name_find_nothing",),
    ),
    Mutation(
        "an-upload-is-published-without-its-parts",
        f"{CACHES}/parts.py",
        "if found != expected:",
        "if False:",
        (f"{UPLOADS}::test_what_does_not_lie_there_as_announced_is_not_published_and_can_be_sent_again",),
    ),
    Mutation(
        "uploads-are-anybodys",
        f"{STORE}/uploads.py",
        "from uploads where id = $1 and job_id = $2 and attempt = $3",
        "from uploads where id = $1 and $2::uuid is not null and $3::int > 0",
        (f"{UPLOADS}::test_of_another_attempt_and_of_another_job_there_is_no_such_upload",),
    ),
    Mutation(
        "two-artifacts-take-the-same-room",
        f"{STORE}/artifact_quota.py",
        "select pg_advisory_xact_lock(",
        "select (",
        (
            f"{LIMITS}::test_of_two_uploads_that_end_at_once_only_what_fits_is_kept",
            f"{LIMITS}::test_of_two_uploads_that_ask_for_the_same_room_one_gets_it",
        ),
    ),
    Mutation(
        "artifacts-are-published-over-the-quota",
        f"{CACHES}/artifacts.py",
        "if size > room.bytes:",
        "if size < 0:",
        (f"{LIMITS}::test_of_two_uploads_that_end_at_once_only_what_fits_is_kept",),
    ),
    Mutation(
        "what-is-being-sent-is-not-counted",
        f"{CACHES}/artifact_limits.py",
        "if sending else NOTHING",
        "if not sending else NOTHING",
        (f"{LIMITS}::test_uploads_that_nobody_completes_never_fill_the_store_beyond_the_quota",),
    ),
    Mutation(
        "an-upload-is-completed-twice",
        f"{CACHES}/uploads.py",
        "if held.state != OPEN:",
        "if False:",
        (f"{UPLOADS}::test_completed_twice_is_once",),
    ),
    Mutation(
        "what-is-published-goes-with-its-session",
        f"{CACHES}/end_uploads.py",
        "if not one.published:",
        "if True:",
        (f"{UPLOADS}::test_what_is_published_outlives_its_session",),
    ),
    Mutation(
        "parts-may-be-of-any-length",
        f"{CACHES}/parts.py",
        "        if size > limit:\n",
        "        if size < 0:\n",
        (f"{UPLOADS}::test_a_part_has_a_number_from_0_and_at_most_so_many_bytes",),
    ),
    Mutation(
        "an-upload-that-broke-off-is-whole",
        "src/kici/agent/transfers.py",
        "                    whole.set_result(not broken)\n",
        "                    whole.set_result(True)\n",
        (f"{REQUESTS}::test_of_an_upload_that_breaks_off_nothing_is_kept_and_the_next_one_is",),
    ),
    Mutation(
        "the-end-of-an-upload-waits-for-whoever-has-its-pipe",
        "src/kici/runner/pipes.py",
        "            if unless is not None and unless.done():\n",
        "            if unless is not None and not unless.done() and unless.done():\n",
        (f"{REQUESTS}::test_the_end_of_an_upload_is_what_the_runner_says_also_where_a_process_keeps_its_pipe",),
    ),
    Mutation(
        "jobs-send-caches-without-bound",
        f"{CACHES}/entries.py",
        "            most - used,\n",
        "            most,\n",
        (f"{UPLOADS}::test_a_job_leaves_no_more_unpublished_than_two_entries_whatever_it_begins",),
    ),
    Mutation(
        "bombs-are-made",
        "src/kici/runner/archive.py",
        "    if total is None or int(total[1]) > _allowed(archive.bytes):\n",
        "    if total is None:\n",
        (f"{ARCHIVE}::test_what_would_be_refused_as_a_bomb_is_not_made",),
    ),
    Mutation(
        "bombs-are-unpacked",
        "src/kici/runner/archive.py",
        "    files = Flow(lambda: _allowed(archive.bytes))\n",
        "    files = Flow()\n",
        (f"{ARCHIVE}::test_a_bomb_is_stopped_long_before_it_has_unfolded",),
    ),
    Mutation(
        "objects-are-made-twice",
        "src/kici/orchestrator/objects/object_file.py",
        "            if not create:\n",
        "            if not create or create:\n",
        (f"{OBJECTS}::test_of_many_creators_one_wins",),
    ),
    Mutation(
        "half-an-object-is-published",
        "src/kici/orchestrator/objects/object_file.py",
        "        self._beside = path.with_name(UNFINISHED + secrets.token_hex(12))\n",
        "        self._beside = path\n",
        (f"{OBJECTS}::test_a_stream_that_breaks_leaves_nothing_visible",),
    ),
)
