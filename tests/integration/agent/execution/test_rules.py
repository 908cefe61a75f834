"""Rules that are functions, and those of steps, as the runner asks them."""

from __future__ import annotations

from typing import Any

import pytest

from kici.engine.events import Event, EventType

EVENT = Event(EventType.PUSH, branch="main", sha="a" * 40, repo="acme/app", changed_files=("src/a.py",))


@pytest.mark.parametrize(
    ("of_workflow", "of_job", "reason"),
    [
        ("rule('never', no)", "yes", "rule 'never' says no"),
        ("yes", "skip_if('asked', yes)", "rule 'asked' says no"),
        ("yes", "boom", "rule 'boom' raised LookupError: nobody knows"),
    ],
)
async def test_a_job_whose_rule_says_no_is_skipped_with_all_its_entries(
    jobs: Any, of_workflow: str, of_job: str, reason: str
) -> None:
    ended = await jobs.run_whole(
        f"""
        def yes(ctx): return True
        async def no(ctx): return False
        def boom(ctx): raise LookupError("nobody knows")
        build = job("build", runs_on="linux", rules={of_job}, steps=["echo ran", "true"], cleanup="echo cleaned")
        ci = workflow("ci", jobs=[build], rules={of_workflow})
        """
    )
    assert (ended.status, ended.error) == ("skipped", reason)
    assert set(jobs.statuses.values()) == {"skipped"}
    assert len(jobs.statuses) == 3
    assert "ran" not in jobs.sink.text.replace(reason, "")


async def test_a_step_whose_rule_says_no_is_skipped_and_the_job_goes_on(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        async def files(ctx): return "src/a.py" in ctx.event.changed_files
        build = job("build", runs_on="linux", steps=[
            step("docs", "echo wrong", rules=changed("docs/**")),
            step("src", "echo right", rules=[changed("src/**"), files]),
            step("asked", "echo wrong", rules=lambda ctx: False),
        ])
        ci = workflow("ci", jobs=[build])
        """,
        event=EVENT,
    )
    assert ended.status == "success"
    assert jobs.statuses == {"docs": "skipped", "src": "success", "asked": "skipped"}
    assert jobs.sink.ended[0].error == "rule 'changed docs/**': no changed file matches docs/**"
    assert "wrong" not in jobs.sink.text


async def test_where_nobody_knows_what_changed_a_step_runs_and_says_so(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[step("docs", "echo ran", rules=changed("docs/**"))])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "success"
    assert "everything counts as changed" in jobs.sink.text


async def test_a_rule_that_takes_its_time_does_not_hold_up_a_cancel(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        import asyncio
        async def asks(ctx):
            print("asking")
            await asyncio.sleep(60)
        build = job("build", runs_on="linux", rules=asks, steps=["echo ran"], cleanup="echo cleaned")
        ci = workflow("ci", jobs=[build])
        """,
        cancel_at="asking",
    )
    assert (ended.status, ended.error) == ("cancelled", "nobody wants it")
    assert "ran" not in jobs.sink.text
