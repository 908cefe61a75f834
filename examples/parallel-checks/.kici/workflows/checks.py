"""Everything that can be checked at the same time, in one job and one checkout, with what is slow to make kept."""

import re

from kici import Ctx, cache, changed, job, manual, parallel, pr, push, setup, skip_if, step, workflow

DICTIONARY = "build/dictionary/words"

# Made once for each state of the lists: later runs find it by its key.
dictionary = setup(
    f"test -e {DICTIONARY}.dir || python3 tools/dictionary.py {DICTIONARY}",
    name="dictionary",
    cache=cache("dictionary-{hash:words/*.txt,tools/dictionary.py}", paths="build/dictionary"),
)


@step
async def unit_tests(ctx: Ctx) -> int:
    said = await ctx.sh("python3 -m unittest 2>&1").text()
    ran = re.search(r"^Ran (\d+) test", said, re.MULTILINE)
    return int(ran[1]) if ran else 0


spelling = step(
    "spelling", f"python3 tools/spelling.py {DICTIONARY} docs", rules=changed("docs/**", "words/**", "tools/**")
)
compiles = step("compiles", "python3 -m compileall -q -f .", env={"PYTHONPYCACHEPREFIX": "build/pycache"})

# An opinion, not a verdict; and none is asked for about a draft.
long_lines = step(
    "long lines",
    "! grep -rnE '.{121,}' --include='*.py'.",
    continue_on_error=True,
    rules=skip_if("a draft", lambda ctx: ctx.git.branch.startswith("draft/")),
)


@step
async def verdict(ctx: Ctx) -> str:
    """After the group: what its steps returned can be read now."""
    return f"{ctx.outputs(unit_tests)} tests"


# Without `fail_fast` the author sees all that is wrong, not only what was found first.
checks = job(
    "checks",
    runs_on="linux",
    init=dictionary,
    steps=[parallel(unit_tests, spelling, compiles, long_lines, fail_fast=False, name="all at once"), verdict],
)

flow = workflow("checks", on=[push(branches=["main", "draft/*"]), pr(), manual()], jobs=[checks])
