from __future__ import annotations

import pytest

from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockJob, LockRule, LockStep, LockWorkflow, PushTrigger, SourceLocation
from kici.engine.plan import plan
from kici.engine.rules import decide
from kici.engine.triggers import match

SRC = LockRule("changed src/**", changed=("src/**", "!**/*.md"))
NOT_DOCS = LockRule("docs", changed=("docs/**",), negated=True)
FUNCTION = LockRule("weekday")


@pytest.mark.parametrize(
    ("rules", "changed", "reason"),
    [
        ((), ("README",), ""),
        ((FUNCTION,), ("README",), ""),
        ((SRC,), ("src/a.py", "README"), ""),
        ((SRC,), ("README",), "rule 'changed src/**': no changed file matches src/**, !**/*.md"),
        ((SRC,), ("src/a.md",), "rule 'changed src/**': no changed file matches src/**, !**/*.md"),
        ((SRC,), (), "rule 'changed src/**': nothing changed, so nothing matches src/**, !**/*.md"),
        ((NOT_DOCS,), ("src/a.py",), ""),
        ((NOT_DOCS,), ("src/a.py", "docs/x"), "rule 'docs': a changed file matches docs/**"),
        ((NOT_DOCS,), (), ""),
        ((SRC, NOT_DOCS), ("src/a.py", "docs/x"), "rule 'docs': a changed file matches docs/**"),
    ],
)
def test_the_first_rule_that_says_no_decides(
    rules: tuple[LockRule, ...], changed: tuple[str, ...], reason: str
) -> None:
    verdict = decide(rules, changed)
    assert (verdict.passed, verdict.reason) == (not reason, reason)


def test_where_nobody_knows_what_changed_the_rules_let_pass_and_say_so() -> None:
    verdict = decide((SRC, NOT_DOCS, FUNCTION), None)
    assert verdict.passed
    assert verdict.warning == (
        "rules 'changed src/**', 'docs': it is not known which files changed, so everything counts as changed"
    )


def a_workflow(*jobs: LockJob, rules: tuple[LockRule, ...] = ()) -> LockWorkflow:
    return LockWorkflow(
        "ci", SourceLocation(".kici/workflows/ci.py"), "ci", "hash", (PushTrigger(),), jobs, rules=rules
    )


def push(*changed: str) -> Event:
    return Event(type=EventType.PUSH, branch="main", changed_files=changed)


def test_a_job_whose_rules_say_no_is_planned_as_skipped_and_those_that_need_it_are_still_connected() -> None:
    rust = LockJob("rust", (LockStep("run"),), ("linux",), rules=(SRC,), matrix={"a": ("1", "2")})
    planned = plan(a_workflow(rust), push("README"))
    assert [one.skip for one in planned.jobs] == ["rule 'changed src/**': no changed file matches src/**, !**/*.md"] * 2
    assert [one.skip for one in plan(a_workflow(rust), push("src/x")).jobs] == ["", ""]


def test_a_dynamic_job_whose_rules_say_no_costs_no_hop() -> None:
    job = LockJob("test", (LockStep("run"),), ("linux",), rules=(SRC,), dynamic=("matrix",))
    planned = plan(a_workflow(job), push("README")).jobs
    assert [(one.name, bool(one.skip), one.seed) for one in planned] == [("test", True, None)]


def test_a_plan_warns_where_nobody_knows_what_changed() -> None:
    job = LockJob("rust", (LockStep("run"),), ("linux",), rules=(SRC,))
    planned = plan(a_workflow(job), Event(type=EventType.PUSH, branch="main"))
    assert [one.skip for one in planned.jobs] == [""]
    assert len(planned.warnings) == 1
    assert planned.warnings[0].startswith("job 'rust': rule 'changed src/**': it is not known which files changed")


def test_the_rules_of_a_workflow_decide_whether_it_starts() -> None:
    job = LockJob("a", (LockStep("run"),), ("linux",))
    decision = match(a_workflow(job, rules=(SRC, FUNCTION)), push("README"))
    assert not decision.matched
    assert [(one.check, one.pattern, one.value, one.passed) for one in decision.checks][-1] == (
        "rule",
        "src/**, !**/*.md",
        "README",
        False,
    )
    assert match(a_workflow(job, rules=(SRC, FUNCTION)), push("src/x")).matched


def test_a_workflow_starts_with_a_warning_where_nobody_knows_what_changed() -> None:
    job = LockJob("a", (LockStep("run"),), ("linux",))
    decision = match(a_workflow(job, rules=(SRC,)), Event(type=EventType.PUSH, branch="main"))
    assert decision.matched
    assert "everything counts as changed" in decision.warnings[0]
