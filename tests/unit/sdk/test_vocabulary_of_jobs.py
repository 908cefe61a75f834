"""Rules, hooks, caches, init, parallel groups and generators, as authors define them."""

from __future__ import annotations

from typing import Any

import pytest

import kici
from kici import (
    Checkout,
    Ctx,
    DefinitionError,
    Generator,
    cache,
    changed,
    hook,
    job,
    jobs,
    manual,
    mise,
    parallel,
    rule,
    setup,
    skip_if,
    skip_unless,
    step,
    uv_sync,
    workflow,
)
from kici.engine.lockfile import LockCheckout, SubmoduleLevels
from kici.lowering.jobs import lowered_job

anything: Any = kici


def ask(ctx: Ctx) -> bool:
    return True


def tidy(ctx: Ctx) -> None: ...


def made(**options: Any) -> Any:
    return anything.job("a", runs_on="linux", steps=["true"], **options)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rule_has_a_label_and_a_function() -> None:
    @rule
    async def only_on_weekdays(ctx: Ctx) -> bool:
        return True

    @rule("has a version")
    def versioned(ctx: Ctx) -> bool:
        return True

    rules = made(rules=[only_on_weekdays, versioned, ask, skip_if("draft", ask), skip_unless("ready", ask)]).rules
    assert [(one.label, one.negated) for one in rules] == [
        ("only on weekdays", False),
        ("has a version", False),
        ("ask", False),
        ("draft", True),
        ("ready", False),
    ]


def test_changed_is_static() -> None:
    (only,) = made(rules=changed("src/**", "!**/*.md")).rules
    assert (only.fn, only.changed, only.label) == (None, ("src/**", "!**/*.md"), "changed src/**, !**/*.md")


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_is_a_function_or_a_command_with_a_limit() -> None:
    hooks = made(cleanup=tidy, on_failure="make report", before_step=hook(tidy, timeout="1m")).hooks
    assert {name: (one.fn, one.command, one.timeout_ms) for name, one in hooks.items()} == {
        "before_step": (tidy, None, 60_000),
        "on_failure": (None, "make report", 300_000),
        "cleanup": (tidy, None, 300_000),
    }
    assert set(step("x", "true", cleanup=tidy, on_cancel="true").hooks) == {"cleanup", "on_cancel"}
    assert set(workflow("ci", jobs=[made()], on_success=tidy).hooks) == {"on_success"}


# ── checkout ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_checkout_is_as_its_author_says_and_lowered_into_the_lock_file() -> None:
    found = made(checkout=Checkout(depth=0, submodules="recursive", lfs=True, sparse=["src/app/"], tags=True))
    lowered = lowered_job(found, workflow("ci", on=manual(), jobs=[found]), lambda place: None).checkout
    assert lowered == LockCheckout(0, SubmoduleLevels.ALL, lfs=True, sparse=("src/app",), tags=True)
    assert lockfile_checkout(made()) is True
    assert lockfile_checkout(made(checkout=False)) is False


def lockfile_checkout(found: Any) -> Any:
    return lowered_job(found, workflow("ci", on=manual(), jobs=[found]), lambda place: None).checkout


# ── caches and init ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_init_takes_commands_and_presets() -> None:
    init = made(init=["make deps", setup("npm ci", name="npm"), mise(), uv_sync("--all-extras")]).init
    assert [one.name for one in init] == ["make deps", "npm", "mise", "uv sync"]
    assert init[0].timeout_ms == 600_000
    assert init[2].caches[0].paths == ("~/.local/share/mise",)
    assert init[3].command.startswith("uv sync --locked --all-extras\n")
    assert made(init=mise(cached=False)).init[0].caches == ()


def test_arguments_of_uv_are_quoted() -> None:
    assert uv_sync("--group", "a b; rm -rf /").command.splitlines()[0] == "uv sync --locked --group 'a b; rm -rf /'"


# ── parallel groups ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_is_a_run_of_the_jobs_steps() -> None:
    one = job("a", runs_on="linux", steps=["first", parallel("b", "c", max_parallel=1), parallel("d", name="last")])
    assert [each.name for each in one.steps] == ["first", "b", "c", "d"]
    assert [(each.name, each.first, each.size, each.max_parallel) for each in one.parallel] == [
        ("parallel-1", 1, 2, 1),
        ("last", 3, 1, None),
    ]
    assert [index for index in range(4) if index in one.parallel[0]] == [1, 2]


# ── generators ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_generator_stands_among_the_jobs_and_in_needs() -> None:
    plan = job("plan", runs_on="linux", steps=["true"])

    @jobs("shards", needs=[plan])
    async def shards(ctx: Ctx) -> list[Any]:
        return []

    after = job("after", runs_on="linux", steps=["true"], needs=[shards.when("always")])
    ci = workflow("ci", jobs=[plan, shards, after])
    assert isinstance(shards, Generator)
    assert (ci.jobs, ci.generators) == ((plan, after), (shards,))
    assert after.needs[0].name == "shards"


def test_options_that_are_functions_have_no_value() -> None:
    one = made(matrix=lambda ctx: ["a"], environment=lambda ctx: "staging", env=lambda ctx: {}, concurrency=ask)
    assert sorted(one.dynamic) == ["concurrency", "env", "environment", "matrix"]
    assert (one.matrix, one.environment, one.env, one.concurrency) == (None, None, {}, None)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: made(rules=changed), r"call it: changed\(…\)"),
        (lambda: made(rules=5), "5 is no rule"),
        (lambda: changed(), "name at least one file"),
        (lambda: anything.rule("x", 5), "5 is no function"),
        (lambda: anything.rule("x", ask, ask), "write @rule"),
        (lambda: anything.skip_if("x", anything.rule("y", ask)), "a rule already"),
        (lambda: made(cleanup=5), "job 'a': cleanup: 5 is no hook"),
        (lambda: made(on_cleanup=tidy), r"did you mean 'cleanup'\?"),
        (lambda: hook(tidy, timeout="soon"), "timeout"),
        (lambda: made(init=mise), r"call it: mise\(…\)"),
        (lambda: made(init=" "), "no set-up"),
        (lambda: anything.setup(""), "command is empty"),
        (lambda: anything.setup("make", shell="zsh"), "shell"),
        (lambda: made(checkout="full"), r"write True, False or Checkout\(depth=0\)"),
        (lambda: made(checkout=anything.Checkout(depth=-1)), "checkout: depth is -1"),
        (lambda: made(checkout=anything.Checkout(depth=True)), "depth is True"),
        (lambda: made(checkout=anything.Checkout(submodules="all")), "submodules is 'all'"),
        (lambda: made(checkout=anything.Checkout(lfs=1)), "lfs is 1"),
        (lambda: made(checkout=anything.Checkout(sparse=["../x"])), "path below the checkout"),
        (lambda: made(checkout=anything.Checkout(sparse="src/*")), "takes no patterns"),
        (lambda: made(checkout=anything.Checkout(sparse=["a\nb"])), "takes no patterns"),
        (lambda: made(cache="uv"), "no cache"),
        (lambda: cache("", paths="x"), "key"),
        (lambda: cache("k", paths=[]), "paths"),
        (lambda: cache("k", paths="/etc"), "leaves the checkout"),
        (lambda: cache("k", paths="~/../x"), "leaves the checkout"),
        (lambda: cache("k", paths="."), "leaves the checkout"),
        (lambda: cache("k", paths="~/"), "leaves the checkout"),
        (lambda: cache("k", paths="x", restore=[""]), "prefixes"),
        (lambda: parallel(), "no steps"),
        (lambda: anything.parallel(parallel("a"), "b"), "group inside the group"),
        (lambda: parallel("a", max_parallel=0), "max_parallel is 0"),
        (lambda: anything.jobs(ask), "no name"),
        (lambda: anything.jobs("x")(5), "5 is no function"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_to_write(make: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        make()
