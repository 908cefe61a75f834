"""What a module does when it is imported cannot spoil the compile, and is said at its line."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.compiler.conftest import Repository

GOOD = 'ci = workflow("ci", on=push(), jobs=[job("a", runs_on="linux", steps=["true"])])\n'


def test_a_syntax_error_is_said_at_its_line_and_the_other_modules_go_on(repository: Repository) -> None:
    repository.module("broken.py", "x = (\n")
    repository.module("other.py", 'ci = workflow("ci", on=push(), jobs=[])\n')
    problems = repository.problems()
    assert problems[0].startswith("broken.py:3: syntax error: ")
    assert problems[1] == "other.py:3: workflow 'ci': it has no jobs: write jobs=[…]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(3)\n", "bad.py:4: import: it calls sys.exit"),
        ("1 / 0\n", "bad.py:3: import: ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError('x')\n\nf()\n", "bad.py:4: import: KeyError: 'x'"),
        ("from kici import only_on_first_host\n", "bad.py:3: import: kici has no 'only_on_first_host' yet"),
        ("import no_such_thing\n", "bad.py:3: import: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise KeyboardInterrupt\n", "bad.py:3: import: KeyboardInterrupt"),
    ],
)
def test_what_a_module_raises_is_said_at_its_line(repository: Repository, text: str, said: str) -> None:
    repository.module("bad.py", text)
    assert len(problems := repository.problems()) == 1
    assert problems[0].startswith(said)


def test_a_module_that_ends_the_interpreter_is_named(repository: Repository) -> None:
    repository.module("a.py", GOOD)
    repository.module("b.py", "import os\nos._exit(7)\n")
    assert repository.problems() == [
        "b.py: import: it ended the process (exit code 7):"
        " a workflow module only defines; move what it does into a step"
    ]


def test_a_module_that_kills_the_interpreter_is_named_with_the_signal(repository: Repository) -> None:
    repository.module("b.py", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    (problem,) = repository.problems()
    assert problem.startswith("b.py: import: it ended the process (SIGKILL): ")


def test_a_crash_of_the_interpreter_is_said_at_its_line(repository: Repository) -> None:
    repository.module("b.py", "import ctypes\n\nctypes.string_at(0)\n")
    (problem,) = repository.problems()
    assert problem.startswith("b.py:5: import: Fatal Python error: Segmentation fault")


@pytest.mark.parametrize("name", ["loop.py", "schleife-ä-環.py"])
def test_an_endless_loop_is_stopped_and_said_at_its_line(repository: Repository, name: str) -> None:
    repository.module(
        name, "def spin():\n    while True:\n        pass\n\ntry:\n    spin()\nexcept BaseException:\n    pass\n"
    )
    (problem,) = repository.problems(limit_s=0.5)
    file, line, _, rest = problem.split(":", 3)
    assert file == name
    assert line in ("4", "5")
    assert rest.startswith(" importing it took more than 0.5 s")


def test_what_a_module_prints_does_not_reach_the_answer(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = 'import os, sys\nprint("{}")\nos.write(1, b"noise\\n")\nsys.stdout.write("x")\nos.system("echo shell")\n'
    repository.module("ci.py", noise + GOOD)
    compiled = repository.compile()
    assert compiled.lock
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "noise\n" in printed.err
    assert "shell\n" in printed.err


def test_threads_processes_and_exit_handlers_of_a_module_do_not_hold_the_compile(
    repository: Repository, process_with: Callable[[str], bool]
) -> None:
    repository.module(
        "ci.py",
        """
        import atexit, subprocess, threading, time
        threading.Thread(target=lambda: time.sleep(3600)).start()
        atexit.register(time.sleep, 3600)
        subprocess.Popen(["sleep", "3617.25"])
        """
        + "\n        "
        + GOOD,
    )
    assert repository.compile().lock
    deadline = time.monotonic() + 10
    while process_with("3617.25"):  # killed, and gone in a moment
        assert time.monotonic() < deadline


def test_the_environment_of_whoever_compiles_is_not_seen(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "s3cret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    repository.module(
        "ci.py", "import os\nassert 'DEPLOY_TOKEN' not in os.environ\nassert 'PYTHONPATH' not in os.environ\n" + GOOD
    )
    assert repository.problems() == []


def test_standard_input_is_empty(repository: Repository) -> None:
    repository.module("ci.py", "import sys\nassert sys.stdin.read() == ''\n" + GOOD)
    assert repository.problems() == []


def test_modules_that_import_each_other_are_told_what_to_do(repository: Repository) -> None:
    repository.module("a.py", "from workflows.b import right\nleft = 1\n")
    repository.module("b.py", "from workflows.a import left\nright = 1\n")
    problems = repository.problems()
    assert all("move what both modules need into a third one" in problem for problem in problems)
    assert problems[0].startswith(("a.py:3: import: ", "b.py:3: import: "))


def test_a_sibling_that_is_imported_by_its_bare_name_is_told_the_right_one(repository: Repository) -> None:
    repository.write("workflows/_shared.py", "x = 1\n")
    repository.module("ci.py", "from _shared import x\n")
    assert repository.problems() == [
        "ci.py:3: import: there is no module '_shared': write `from workflows._shared import …`"
    ]


def test_no_bytecode_is_left_in_the_repository(repository: Repository) -> None:
    repository.write("workflows/_shared.py", "x = 1\n")
    repository.module("ci.py", "from workflows._shared import x\n" + GOOD)
    assert repository.compile().lock
    assert not list(repository.root.rglob("__pycache__"))
