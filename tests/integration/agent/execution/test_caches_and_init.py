"""Caches and init commands of jobs and steps."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zstandard

JOB = """
build = job("build", runs_on="linux", {options}, steps=[{steps}])
ci = workflow("ci", jobs=[build])
"""


async def run(jobs: Any, options: str, steps: str) -> Any:
    jobs.sink.log.clear()
    return await jobs.run_whole(JOB.format(options=options, steps=steps))


async def test_init_runs_before_the_steps_and_what_it_sets_counts_for_them(jobs: Any) -> None:
    ended = await run(
        jobs,
        """init=[setup('echo "A=$B" >> "$KICI_ENV"; mkdir bin; echo "$PWD/bin" >> "$KICI_PATH"', env={"B": "{branch}"}),
                 "echo $A in init"]""",
        """'echo "$A ${B:-gone}"; case $PATH in "$PWD/bin":*) echo first;; esac'""",
    )
    assert ended.status == "success", jobs.sink.text
    assert "main in init" in jobs.sink.text
    assert "main gone" in jobs.sink.text
    assert "first" in jobs.sink.text


async def test_a_failing_init_fails_the_job_before_any_step(jobs: Any) -> None:
    ended = await run(jobs, 'init=["exit 4", "echo second"], on_failure="echo told"', '"echo never"')
    assert (ended.status, ended.error) == ("failed", "step 'init: exit 4' failed: exit 4 failed: exit code 4")
    assert list(jobs.statuses.values()) == ["failed", "skipped", "skipped", "success"]
    assert "told" in jobs.sink.text


async def test_what_a_job_saves_comes_back_and_what_stands_beside_it_stays(jobs: Any) -> None:
    cached = 'cache=cache("k-{branch}", paths=["out/deep", "~/.tool/data"])'
    saved = await run(jobs, cached, '"mkdir -p out/deep ~/.tool/data; echo 1 > out/deep/a; echo 2 > ~/.tool/data/b"')
    assert saved.status == "success"
    assert list(jobs.sink.caches) == ["k-main"]
    clear = "rm -rf out/deep ~/.tool/data; touch out/beside ~/.tool/beside"
    home = jobs.root / "home"
    assert (await run(jobs, 'env={"X": "1"}', f'"{clear}"')).status == "success"
    found = await run(jobs, cached, '"cat out/deep/a ~/.tool/data/b; ls out ~/.tool"')
    assert found.status == "success", jobs.sink.text
    assert "restored k-main" in jobs.sink.text
    assert "k-main is there already" in jobs.sink.text
    assert (jobs.root / "src/out/beside").exists()
    assert (home / ".tool/beside").exists()


async def test_a_host_that_never_takes_a_cache_does_not_hold_the_job(
    jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def never(key: str, data: AsyncIterator[bytes]) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(jobs.sink, "cache_save", never)
    ended = await run(jobs, 'timeout="2s", grace_period="1s", cache=cache("k", paths="out")', '"mkdir out"')
    assert begun.is_set()
    assert (ended.status, ended.reason) == ("failed", "timeout")


async def test_after_a_prefix_the_exact_key_is_saved_also_of_init(jobs: Any) -> None:
    jobs.sink.caches.clear()
    options = """init=setup("mkdir -p c; echo {n} > c/n", cache=cache("k-{n}", paths="c", restore="k-"))"""
    assert (await run(jobs, options.format(n=1), '"true"')).status == "success"
    assert (await run(jobs, options.format(n=2), '"true"')).status == "success"
    assert "no k-2, restored k-1" in jobs.sink.text
    assert list(jobs.sink.caches) == ["k-1", "k-2"]


async def test_the_key_is_that_of_the_files_before_the_steps(jobs: Any) -> None:
    (jobs.root / "src" / "a.txt").write_text("1")
    cached = 'cache=cache("k-{hash:**/*.txt}", paths="made")'
    assert (await run(jobs, cached, '"mkdir -p made; echo 2 > made/b.txt"')).status == "success"
    (key,) = jobs.sink.caches
    assert (await run(jobs, 'env={"X": "1"}', '"rm -rf made"')).status == "success"
    assert (await run(jobs, cached, '"cat made/b.txt"')).status == "success"
    assert f"restored {key}" in jobs.sink.text


async def test_a_broken_archive_touches_nothing_and_fails_nothing(jobs: Any) -> None:
    cached = 'cache=cache("k", paths="out")'
    assert (
        await run(jobs, cached, '"mkdir -p out; head -c 300000 /dev/urandom > out/a; echo old > out/b"')
    ).status == "success"
    jobs.sink.caches["k"] = jobs.sink.caches["k"][:100_000]
    ended = await run(jobs, cached, '"true"')
    assert ended.status == "success"
    assert "going on without it" in jobs.sink.text
    assert (jobs.root / "src/out/a").stat().st_size == 300_000


async def test_what_is_restored_takes_the_place_of_what_is_there(jobs: Any) -> None:
    cached = 'cache=cache("k", paths=["out", "~/.tool"])'
    assert (await run(jobs, cached, '"mkdir -p out ~/.tool; echo 1 > out/a; echo 1 > ~/.tool/b"')).status == "success"
    assert jobs.sink.caches["k"].startswith(b"\x28\xb5\x2f\xfd"), "zstd"
    assert (await run(jobs, 'env={"X": "1"}', '"echo 2 > out/a; echo 2 > out/stale"')).status == "success"
    assert (await run(jobs, cached, '"cat out/a; ls -A . out"')).status == "success"
    assert "restored k" in jobs.sink.text
    assert "stale" not in jobs.sink.text
    assert ".kici-unpacking" not in jobs.sink.text


@pytest.mark.parametrize("jobs", ["none", "bubblewrap"], indirect=True)
async def test_a_hostile_entry_touches_nothing_and_is_told(jobs: Any) -> None:
    cached = 'cache=cache("k", paths="out")'
    for name, kind in (("repo/out/../../../../escaped", tarfile.REGTYPE), ("repo/out/pipe", tarfile.FIFOTYPE)):
        whole = io.BytesIO()
        with tarfile.open(fileobj=whole, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("repo/out/new"))
            hostile = tarfile.TarInfo(name)
            hostile.type = kind
            tar.addfile(hostile)
        jobs.sink.caches.clear()
        jobs.sink.caches["k"] = zstandard.compress(whole.getvalue())
        ended = await run(jobs, cached, '"mkdir -p out; touch out/mine; ls out"')
        assert ended.status == "success", jobs.sink.text
        assert "going on without it" in jobs.sink.text
        assert os.listdir(jobs.root / "src/out") == ["mine"]
        assert not list(jobs.root.rglob("escaped"))
        jobs.sink.log.clear()


async def test_a_link_out_of_the_checkout_is_not_followed(jobs: Any) -> None:
    cached = 'cache=cache("k", paths="out/deep")'
    assert (await run(jobs, cached, '"mkdir -p out/deep; echo 1 > out/deep/a"')).status == "success"
    ended = await run(jobs, 'env={"X": "1"}', '"rm -rf out; mkdir -p ~/elsewhere; ln -s ~/elsewhere out"')
    assert ended.status == "success"
    assert (await run(jobs, cached, '"true"')).status == "success"
    assert "symbolic link" in jobs.sink.text
    assert not (jobs.root / "home/elsewhere/deep").exists()


async def test_nothing_is_saved_of_a_job_or_step_that_fails(jobs: Any) -> None:
    ended = await run(
        jobs,
        'cache=cache("job", paths="out")',
        'step("s", "mkdir out; exit 3", cache=cache("step", paths="out"))',
    )
    assert ended.status == "failed"
    assert jobs.sink.caches == {}


async def test_a_step_uses_a_cache_by_itself(jobs: Any) -> None:
    text = """
@step
async def use(ctx):
    async with ctx.cache("mine", "out") as found:
        print(f"hit {found.hit}")
        await ctx.sh("mkdir -p out; touch out/a")
@step
def blocking(ctx):
    with ctx.cache("mine", "out") as found:
        print(f"then {found.hit} {found.matched_key}")
ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[use, blocking])])
"""
    ended = await jobs.run_whole(text)
    assert ended.status == "success", jobs.sink.text
    assert "hit False" in jobs.sink.text
    assert "then True mine" in jobs.sink.text
