from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kici.engine.circles import circle
from kici.engine.evaluation import Evaluated, Generated, Values, pack
from kici.engine.events import Event, EventType
from kici.engine.expansion import Expansion, Known, StandIn, expand, rewired
from kici.engine.lockfile import LockGenerator, LockJob, LockNeed, LockRule, LockStep, LockWorkflow, SourceLocation
from kici.engine.plan import Plan, PlannedJob, PlannedNeed, plan

PUSH = Event(type=EventType.PUSH, branch="main", changed_files=("src/a",))
SUCCESS = frozenset({"success"})


def job(name: str, *needs: str, **options: Any) -> LockJob:
    options = {"steps": (LockStep("run"),), "runs_on": ("linux",)} | options
    return LockJob(name=name, needs=tuple(LockNeed(need) for need in needs), **options)


def generator(name: str, *needs: str) -> LockGenerator:
    return LockGenerator(name, ("linux",), needs=tuple(LockNeed(need) for need in needs))


def planned(*jobs: LockJob, generators: tuple[LockGenerator, ...] = ()) -> Plan:
    workflow = LockWorkflow("ci", SourceLocation("ci.py"), "ci", "", (), jobs, generators, env={"W": "{workflow}"})
    return plan(workflow, PUSH)


def known(jobs: tuple[PlannedJob, ...]) -> list[Known]:
    return [Known(one.name, one.job.name, tuple(need.upstream for need in one.needs), one.generated_by) for one in jobs]


def expanded(jobs: tuple[PlannedJob, ...], name: str, result: Evaluated) -> Expansion:
    one = next(one for one in jobs if one.name == name)
    assert one.seed
    return expand(StandIn(one.name, one.position, one.needs, one.seed), PUSH, pack(result), known(jobs))


def made(*jobs: LockJob) -> Evaluated:
    return Evaluated(jobs=tuple(Generated(one) for one in jobs))


def in_place(jobs: tuple[PlannedJob, ...], name: str, new: tuple[PlannedJob, ...]) -> tuple[PlannedJob, ...]:
    """The run once the stand-in has become these."""
    names = [one.name for one in new]
    left = [replace(one, needs=rewired(one.needs, name, names)) for one in jobs if one.name != name]
    return tuple(sorted((*left, *new), key=lambda one: one.position))


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dynamic_job_is_planned_as_a_question_and_a_stand_in() -> None:
    jobs = planned(job("a"), job("b", "a", dynamic=("matrix",)), job("c", "b")).jobs
    assert [(one.name, one.position, [need.upstream for need in one.needs]) for one in jobs] == [
        ("a", 0, []),
        ("init: b", 1, ["a"]),
        ("b", 2, ["a", "init: b"]),
        ("c", 1002, ["b"]),
    ]
    assert [(one.carried, one.seed is not None) for one in jobs] == [
        (False, False),
        (True, False),
        (False, True),
        (False, False),
    ]


def test_a_generator_stands_before_the_first_job_that_needs_it() -> None:
    jobs = planned(
        job("a"), job("c", "late"), generators=(generator("last"), generator("late", "early"), generator("early"))
    )
    assert [one.name for one in jobs.jobs] == [
        "a", "init: early", "early", "init: late", "late", "c", "init: last", "last",
    ]  # fmt: skip


# ── dynamic options ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_matrix_that_a_function_gave_fans_out_in_the_place_of_the_stand_in() -> None:
    jobs = planned(job("a"), job("b", "a", dynamic=("matrix",), exclude=({"x": "2"},)), job("c", "b", "a")).jobs
    found = expanded(jobs, "b", Evaluated(Values({"x": ("1", "2", "3")})))
    assert [(one.name, one.position, one.matrix) for one in found.jobs] == [
        ("b (1)", 2, {"x": "1"}),
        ("b (3)", 3, {"x": "3"}),
    ]
    assert all(one.carried and one.needs == (PlannedNeed("a", SUCCESS),) for one in found.jobs)
    assert found.jobs[0].env == {"W": "ci"}
    after = in_place(jobs, "b", found.jobs)
    assert [need.upstream for need in after[-1].needs] == ["b (1)", "b (3)", "a"]


def test_environment_and_group_that_functions_gave_hold_for_all_combinations() -> None:
    jobs = planned(job("b", dynamic=("concurrency", "env", "environment"), matrix={"x": ("1", "2")})).jobs
    found = expanded(jobs, "b", Evaluated(Values(None, "prod", {"E": "{x}"}, "deploy")))
    assert [(one.name, one.environment, one.env, one.concurrency_group) for one in found.jobs] == [
        (f"b ({n})", "prod", {"W": "ci", "E": "{x}"}, "deploy") for n in "12"
    ]


def test_a_matrix_without_a_combination_is_a_problem_and_so_is_one_with_too_many() -> None:
    jobs = planned(job("b", dynamic=("matrix",))).jobs
    assert "the matrix has no combination" in expanded(jobs, "b", Evaluated(Values({"x": ()}))).problem
    many = tuple(map(str, range(257)))
    assert "257 combinations; the limit is 256" in expanded(jobs, "b", Evaluated(Values({"x": many}))).problem


def test_a_result_without_the_option_is_a_problem() -> None:
    jobs = planned(job("b", dynamic=("matrix",))).jobs
    assert expanded(jobs, "b", Evaluated()).problem == "job 'b': the evaluation gave no matrix"
    one = jobs[1]
    assert one.seed
    assert "no result that can be read" in expand(StandIn("b", 1, one.needs, one.seed), PUSH, None, known(jobs)).problem


# ── generators ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_generated_jobs_need_what_their_generator_needs_and_what_they_say() -> None:
    jobs = planned(job("build"), job("report", "shards"), generators=(generator("shards", "build"),)).jobs
    one = replace(job("one"), needs=(LockNeed("build", ("success", "failed")),))
    found = expanded(jobs, "shards", made(one, job("two", "one", matrix={"x": ("1", "2")})))
    assert found.problem == ""
    assert {one.name: [need.upstream for need in one.needs] for one in found.jobs} == {
        "one": ["build"],
        "two (1)": ["build", "one"],
        "two (2)": ["build", "one"],
    }
    assert found.jobs[0].needs[0].run_on == {"success", "failed"}
    assert all(one.generated_by == "shards" and one.carried for one in found.jobs)
    after = {one.name: one for one in in_place(jobs, "shards", found.jobs)}
    assert [need.upstream for need in after["report"].needs] == ["one", "two (1)", "two (2)"]


def test_a_generator_that_makes_nothing_leaves_nothing_to_wait_for() -> None:
    jobs = planned(job("report", "shards"), generators=(generator("shards"),)).jobs
    found = expanded(jobs, "shards", made())
    assert found == Expansion()
    after = {one.name: one for one in in_place(jobs, "shards", ())}
    assert after["report"].needs == ()
    assert "shards" not in after


def test_a_generated_job_may_need_another_group_before_and_after_that_is_known() -> None:
    jobs = planned(generators=(generator("first"), generator("second"))).jobs
    second = expanded(jobs, "second", made(job("late", "first")))
    assert [need.upstream for need in second.jobs[0].needs] == ["first"]
    jobs = in_place(jobs, "second", second.jobs)
    first = expanded(jobs, "first", made(job("x"), job("y")))
    jobs = in_place(jobs, "first", first.jobs)
    assert [need.upstream for need in {one.name: one for one in jobs}["late"].needs] == ["x", "y"]
    # And the other way round, also to one of its jobs in particular.
    late = replace(job("late"), needs=(LockNeed("y", ("failed",)), LockNeed("first")))
    jobs = in_place(planned(generators=(generator("first"), generator("second"))).jobs, "first", first.jobs)
    needs = expanded(jobs, "second", made(late)).jobs[0].needs
    assert {need.upstream: set(need.run_on) for need in needs} == {"x": {"success"}, "y": {"failed"}}


def test_changed_rules_of_generated_jobs_are_asked() -> None:
    jobs = planned(generators=(generator("shards"),)).jobs
    found = expanded(jobs, "shards", made(job("one", rules=(LockRule("r", ("docs/**",)),))))
    assert found.jobs[0].skip == "rule 'r': no changed file matches docs/**"


def problem(*jobs: LockJob) -> str:
    before = planned(job("build"), job("report", "shards"), generators=(generator("shards", "build"),)).jobs
    return expanded(before, "shards", made(*jobs)).problem


def test_what_a_generator_must_not_make_is_said() -> None:
    assert problem(*(job(f"j{n}") for n in range(101))).startswith("generator 'shards' made 101 jobs; the limit is 100")
    assert "two of its jobs are called 'a'" in problem(job("a"), job("a"))
    assert "job 'build': the run has one of that name already" in problem(job("build"))
    assert "job 'shards': the run has one of that name already" in problem(job("shards"))
    assert "job 'init: shards': the run has one of that name already" in problem(job("init: shards"))
    assert "job 'a' needs 'shards', to which it belongs" in problem(job("a", "shards"))
    assert "job 'a' needs 'nope', which is not among" in problem(job("a", "nope"))
    assert "circle: a → b → a" in problem(job("a", "b"), job("b", "a"))
    assert "circle: report → a → report" in problem(job("a", "report"))
    assert "job 'a' has no steps" in problem(job("a", steps=()))
    assert "there is no {nope}" in problem(job("a", env={"X": "{nope}"}))
    assert "has a job called 'a (1)' already" in problem(job("a", matrix={"x": ("1",)}), job("a (1)"))
    assert "and 3 more" in problem(*(job(f"j{n}", "nope") for n in range(8)))


def test_a_run_has_at_most_a_thousand_jobs_with_all_that_is_made() -> None:
    wide = {"x": tuple(map(str, range(250)))}
    before = planned(*(job(f"w{n}", matrix=wide) for n in range(3)), generators=(generator("g"),)).jobs
    found = expanded(before, "g", made(job("more", matrix=wide)))
    assert found.problem == "with the 250 jobs of 'g' the run has 1001 jobs; the limit is 1000"
    assert found.jobs == ()


# ── rewiring ──────────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6)


@given(NAMES, st.integers(0, 6), st.lists(st.sampled_from(["x", "y", "z"]), unique=True), st.booleans())
def test_rewiring_keeps_the_order_and_names_each_once(others: list[str], at: int, new: list[str], own: bool) -> None:
    before = [PlannedNeed(name, SUCCESS) for name in others]
    before.insert(min(at, len(before)), PlannedNeed("G", frozenset({"failed"})))
    if own and new:
        before.append(PlannedNeed(new[0], SUCCESS))
    after = [need.upstream for need in rewired(before, "G", new)]
    assert len(after) == len(set(after))
    assert set(after) == set(others) | set(new)
    assert [name for name in after if name in others] == others
    left = [name for name in new if not (own and name == new[0])]
    assert [name for name in after if name in left] == left
    where = [need.upstream for need in before].index("G")
    assert after[where : where + len(left)] == left


@given(st.data())
def test_an_expansion_never_makes_a_circle_and_loses_no_need(data: st.DataObject) -> None:
    """Over random workflows with generators, expanded in any order that their needs allow."""
    names = [f"j{n}" for n in range(data.draw(st.integers(1, 5)))]
    groups = [f"g{n}" for n in range(data.draw(st.integers(1, 3)))]
    order = data.draw(st.permutations(names + groups))
    needs = {
        one: data.draw(st.lists(st.sampled_from(order[:n]), unique=True) if n else st.just([]))
        for n, one in enumerate(order)
    }
    jobs = planned(
        *(job(name, *needs[name]) for name in names),
        generators=tuple(generator(name, *needs[name]) for name in groups),
    ).jobs
    for group in data.draw(st.permutations(groups)):
        count = data.draw(st.integers(0, 3))
        mine = [f"{group}-{n}" for n in range(count)]
        others = [one.job.name for one in jobs if not one.name.startswith("init: ") and one.name != group]
        wanted = [
            job(name, *data.draw(st.lists(st.sampled_from([*others, *mine]), unique=True, max_size=3)))
            for name in mine
        ]  # fmt: skip
        found = expanded(jobs, group, made(*wanted))
        if found.problem:
            assert "circle" in found.problem or "needs itself" in found.problem
            continue
        jobs = in_place(jobs, group, found.jobs)
        graph = {one.name: [need.upstream for need in one.needs] for one in jobs}
        assert circle(graph) == []
        assert {need for several in graph.values() for need in several} <= graph.keys()
        assert len({one.position for one in jobs}) == len(jobs)
        for one, asked in zip(found.jobs, wanted, strict=True):
            for need in asked.needs:
                reached = {other.name for other in jobs if need.job in (other.job.name, other.generated_by)}
                assert reached <= set(graph[one.name])
