"""What stands in the lock file, and when its bytes change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kici.compiler import drift
from kici.compiler.errors import CompileError
from kici.engine import kici_files, lockfile
from kici.engine.lockfile import LockFile, PrTrigger, PushTrigger, Regex, TagTrigger
from tests.integration.compiler.conftest import HEAD, Repository

GOOD = 'ci = workflow("ci", on=push(), jobs=[job("a", runs_on="linux", steps=["true"])])\n'


def locked(repository: Repository) -> LockFile:
    compiled = repository.compile()
    assert compiled.lock, compiled.problems
    assert lockfile.decode(compiled.data) == compiled.lock
    return compiled.lock


def test_the_bytes_are_the_same_every_time_whatever_the_hash_seed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.module(
        "ci.py",
        """
        names = {"alpha", "beta", "gamma", "delta", "epsilon"}
        jobs = [job(name, runs_on="linux", steps=["true"], grace_period="30s") for name in names]
        ci = workflow("ci", on=push(), jobs=jobs, concurrency="keep-latest")
        """,
    )
    first = repository.compile().data
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert repository.compile().data == first
    assert b"gracePeriodMs" not in first
    assert b"pending" not in first


def test_windows_newlines_give_the_same_lock(repository: Repository) -> None:
    repository.module("ci.py", GOOD)
    data = repository.compile().data
    file = repository.root / ".kici/workflows/ci.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert repository.compile().data == data


def test_names_may_be_in_any_script(repository: Repository) -> None:
    repository.module(
        "fließband.py",
        """
        @job(runs_on="linux")
        async def prüfen(ctx: Ctx) -> str:
            return "ü"

        ci = workflow("発行", on=manual(), jobs=[prüfen])
        """,
    )
    (workflow,) = locked(repository).workflows
    assert (workflow.name, workflow.jobs[0].name) == ("発行", "prüfen")
    assert workflow.source.file == ".kici/workflows/fließband.py"
    assert workflow.jobs[0].location
    assert workflow.jobs[0].location.line == 3


def test_files_are_tracked_or_untracked_and_not_ignored(repository: Repository) -> None:
    repository.module("ci.py", GOOD)
    repository.write("data.bin", b"\0\r\n")
    repository.write("kici.lock.json", "{}")
    repository.write("ignored.txt", "x")
    repository.write("workflows/__pycache__/ci.cpython-311.pyc", b"\0")
    repository.write("gone.txt", "x")
    repository.write(".gitignore", "ignored.txt\n.secrets\n")
    repository.write(".secrets", "TOKEN=x\n")
    subprocess.run(["git", "-C", repository.root, "add", ".kici/gone.txt"], check=True)
    (repository.root / ".kici/gone.txt").unlink()
    files = locked(repository).files
    assert list(files) == [".gitignore", "data.bin", "workflows/ci.py"]
    assert files["data.bin"] == kici_files.digest(b"\0\r\n")


def test_without_a_repository_all_files_are_listed(repository: Repository) -> None:
    subprocess.run(["rm", "-rf", repository.root / ".git"], check=True)
    repository.module("ci.py", GOOD)
    assert list(locked(repository).files) == ["workflows/ci.py"]


def test_symbolic_links_are_refused(repository: Repository, tmp_path: Path) -> None:
    repository.module("ci.py", GOOD)
    (repository.root / ".kici/link").symlink_to(tmp_path)
    (problem,) = repository.compile().problems
    assert str(problem) == ".kici/link: it is a symbolic link: commit the file itself"


def test_committed_secrets_are_an_error_and_unignored_ones_a_warning(repository: Repository) -> None:
    repository.module("ci.py", GOOD)
    repository.write(".secrets", "TOKEN=x\n")
    compiled = repository.compile()
    assert compiled.lock
    assert ".secrets" not in compiled.lock.files
    assert [str(warning) for warning in compiled.warnings] == [
        ".kici/.secrets: git does not ignore it: add it to .gitignore"
    ]
    subprocess.run(["git", "-C", repository.root, "add", "-f", ".kici/.secrets"], check=True)
    (problem,) = repository.compile().problems
    assert "it is committed" in problem.message


def test_a_module_that_git_ignores_is_refused(repository: Repository) -> None:
    repository.module("ci.py", "import workflows._local\n" + GOOD)
    repository.write("workflows/_local.py", "")
    repository.write(".gitignore", "_local.py\n")
    (problem,) = repository.compile().problems
    assert str(problem) == ".kici/workflows/_local.py: it is imported, but git ignores it: no agent would have it"


def test_helpers_are_not_workflows_and_nested_folders_are_searched(repository: Repository) -> None:
    repository.module("helper.py", 'lint = job("lint", runs_on="linux", steps=["true"])\n')
    repository.write("workflows/_raises.py", "raise RuntimeError\n")
    repository.write("workflows/_private/also.py", "raise RuntimeError\n")
    repository.module(
        "deep/er/ci.py",
        """
        from workflows.helper import lint
        from .near import same
        flows = [workflow(f"w{n}", on=push(), jobs=[lint]) for n in range(2)]
        """,
    )
    repository.module("deep/er/near.py", "same = 1\n")
    workflows = locked(repository).workflows
    assert [(one.name, one.source.file, one.export) for one in workflows] == [
        ("w0", ".kici/workflows/deep/er/ci.py", "flows[0]"),
        ("w1", ".kici/workflows/deep/er/ci.py", "flows[1]"),
    ]
    assert workflows[0].jobs[0].location == lockfile.SourceLocation(".kici/workflows/helper.py", 3)


def test_an_imported_workflow_belongs_to_the_module_that_it_is_written_in(repository: Repository) -> None:
    repository.module("b.py", GOOD)
    repository.module("a.py", "from workflows.b import ci\n")
    assert [(one.source.file, one.export) for one in locked(repository).workflows] == [(".kici/workflows/b.py", "ci")]


def test_the_content_hash_covers_what_is_imported_and_nothing_else(repository: Repository) -> None:
    def content_hash() -> str:
        return next(one.content_hash for one in locked(repository).workflows if one.name == "ci")

    repository.write("lib/tools.py", "from lib import deeper\n")
    repository.write("lib/deeper.py", "x = 1\n")
    repository.write("lib/lazy.py", "x = 1\n")
    repository.module("ci.py", "import lib.tools\ndef f():\n    from lib import lazy\n" + GOOD)
    repository.module(
        "other.py", 'o = workflow("other", on=push(), jobs=[job("a", runs_on="linux", steps=["true"])])\n'
    )
    first = content_hash()
    repository.module(
        "other.py", 'o = workflow("other", on=manual(), jobs=[job("a", runs_on="linux", steps=["true"])])\n'
    )
    repository.write("notes.txt", "x")
    assert content_hash() == first
    repository.write("lib/deeper.py", "x = 2\n")
    second = content_hash()
    assert second != first
    repository.write("lib/lazy.py", "x = 2\n")
    assert content_hash() != second


def test_triggers_and_patterns(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        import re
        build = job("a", runs_on=["linux", re.compile("gpu", re.I), "!slow-*"], steps=["true"])
        ci = workflow("ci", on=[
            push(branches=["main", "!dev"], tags="v*", paths="src/**"),
            push(tags=re.compile(r"^v\\d")),
            pr(events="opened"),
        ], jobs=[build])
        """,
    )
    (workflow,) = locked(repository).workflows
    assert workflow.triggers == (
        PushTrigger(("main", "!dev"), ("src/**",)),
        TagTrigger(("v*",)),
        TagTrigger((Regex(r"^v\d"),)),
        PrTrigger(("opened",)),
    )
    assert workflow.jobs[0].runs_on == ("linux", Regex("(?i)gpu"))
    assert workflow.jobs[0].exclude_labels == ("slow-*",)


def test_nothing_to_compile_is_said(repository: Repository) -> None:
    with pytest.raises(CompileError, match="kici init"):
        repository.compile()
    repository.write("workflows/_only.py", "")
    with pytest.raises(CompileError, match="has no modules"):
        repository.compile()
    repository.write("workflows/empty.py", "")
    with pytest.raises(CompileError, match=r"ci = workflow\(…\)"):
        repository.compile()


def test_drift_is_told_in_words(repository: Repository) -> None:
    repository.module("ci.py", GOOD)
    compiled = repository.compile()
    assert compiled.lock
    assert drift.differences(repository.root, compiled.lock, compiled.data) == [".kici/kici.lock.json is missing"]
    (repository.root / lockfile.PATH).write_bytes(compiled.data.replace(b"\n", b"\r\n"))
    assert drift.differences(repository.root, compiled.lock, compiled.data) == []
    repository.module(
        "ci.py",
        """
        a = job("a", runs_on="linux", steps=["true"], timeout="5m", priority=1)
        ci = workflow("ci", on=manual(), jobs=[a, job("b", runs_on="linux", steps=["true"])])
        """,
    )
    changed = repository.compile()
    assert changed.lock
    told = drift.differences(repository.root, changed.lock, changed.data)
    assert [line.partition(": ")[0] for line in told] == [
        "~ files › workflows/ci.py",
        "+ workflows › ci › jobs › a › priority",
        "+ workflows › ci › jobs › a › timeoutMs",
        "+ workflows › ci › jobs › b",
        "~ workflows › ci › triggers",
    ]


def test_a_byte_order_mark_does_not_stop_a_compile(repository: Repository) -> None:
    repository.write("workflows/ci.py", b"\xef\xbb\xbf" + (HEAD + GOOD).encode())
    assert [workflow.name for workflow in locked(repository).workflows] == ["ci"]


def test_a_tracked_file_that_was_deleted_is_not_listed(repository: Repository) -> None:
    repository.module("ci.py", GOOD)
    repository.write("old.txt", "x")
    subprocess.run(["git", "-C", repository.root, "add", "."], check=True)
    (repository.root / ".kici/old.txt").unlink()
    assert list(locked(repository).files) == ["workflows/ci.py"]
