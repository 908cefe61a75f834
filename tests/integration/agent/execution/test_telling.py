"""What a step tells beside its log, and what it waits for."""

from __future__ import annotations

from typing import Any


async def test_remarks_summaries_secrets_and_events_reach_the_host(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        @step
        async def tells(ctx):
            ctx.annotate("warning", "long line", file="src/a.py", line=3)
            ctx.summary("# Done")
            await ctx.set_secret_output("TOKEN", "s3cret-value")
            print(await ctx.emit("built", {"n": 1}))
            await ctx.sh('echo "more" >> "$KICI_SUMMARY"')
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[tells])])
        """
    )
    assert ended.status == "success", jobs.sink.text
    assert jobs.sink.remarks == [(0, "warning", "long line", "src/a.py", 3)]
    assert "".join(text for _, text in jobs.sink.summaries) == "# Donemore\n"
    assert jobs.sink.secrets == {"TOKEN": "s3cret-value"}
    assert "s3cret-value" in jobs.sink.masked
    assert list(jobs.sink.events.values()) == [("built", {"n": 1})]
    assert "event-0" in jobs.sink.text


async def test_waiting_asks_again_until_there_is_something(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        import os
        asked = []
        def ready():
            asked.append(1)
            return [None, False, "yes"][min(len(asked), 3) - 1]
        @step
        async def waits(ctx):
            print(await ctx.wait_for(ready, every="10ms"), len(asked))
        @step
        def blocking(ctx):
            ctx.wait_for(lambda: None, every="10ms", timeout="100ms").run()
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[waits, blocking])])
        """
    )
    assert "yes 3" in jobs.sink.text
    assert ended.status == "failed"
    assert "was not ready within 0.1 s" in ended.error


async def test_what_code_tells_that_outlives_its_step_is_refused_and_fails_nothing(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        import threading
        over, refused = threading.Event(), threading.Event()
        def late(ctx):
            over.wait(30)
            try:
                ctx.summary("too late")
            except RuntimeError:
                refused.set()
        @step
        def first(ctx):
            threading.Thread(target=late, args=(ctx,), daemon=True).start()
        @step
        def second(ctx):
            over.set()
            assert refused.wait(30)
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[first, second])])
        """
    )
    assert ended.status == "success", ended.error
    assert jobs.sink.summaries == []


async def test_a_value_that_is_too_short_to_be_hidden_is_refused_without_saying_it(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @step
        def first(ctx):
            ctx.mask("")
            for refuse in (ctx.mask, lambda value: ctx.set_secret_output("PIN", value)):
                try:
                    refuse("42")
                except ValueError as error:
                    print(error)
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[first])])
        """,
        "first",
    )
    assert ended.status == "success", ended.error
    assert jobs.sink.text.count("a value of 2 bytes cannot be hidden") == 2
    assert "42" not in jobs.sink.text
    assert (jobs.sink.masked, jobs.sink.secrets) == ([], {})
