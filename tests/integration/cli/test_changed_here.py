"""Changed files of a checkout: `kici preview` and `kici run local`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kici.cli.local import changed
from kici.cli.local.changed import NoSuchBase
from tests.support.git import WorkTree, bare, git


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    made = WorkTree(tmp_path / "work", bare(tmp_path / "remote.git"))
    made.commit({"a": "1", ".gitignore": "ignored\n"})
    made.commit({"b": "1"})
    return made


def test_outside_a_repository_and_without_a_commit_nothing_is_known(tmp_path: Path) -> None:
    assert changed.of_checkout(tmp_path).files is None
    git("init", "--quiet", str(tmp_path))
    assert changed.of_checkout(tmp_path).since == "there is no commit here"


def test_an_unknown_base_is_refused(work: WorkTree) -> None:
    for name in ("nope", "--output=x", ""):
        if name:
            with pytest.raises(NoSuchBase, match="no branch, tag or commit"):
                changed.of_checkout(work.path, base=name)


def test_the_first_commit_has_nothing_before_it(tmp_path: Path) -> None:
    work = WorkTree(tmp_path / "w", bare(tmp_path / "r.git"))
    work.commit({"a": "1"})
    decided = changed.of_checkout(work.path)
    assert (decided.files, decided.since) == (None, "there is no earlier commit")


def test_a_clean_default_branch_stands_for_its_last_commit(work: WorkTree) -> None:
    assert changed.of_checkout(work.path).files == ("b",)
    work.push("main")
    assert changed.of_checkout(work.path).files == ("b",)


def test_uncommitted_and_new_files_count_and_ignored_ones_do_not(work: WorkTree) -> None:
    work.push("main")
    (work.path / "a").write_text("2")
    (work.path / "new ü").write_text("1")
    (work.path / "ignored").write_text("1")
    decided = changed.of_checkout(work.path)
    assert decided.files == ("a", "new ü")
    assert decided.since == "where it left origin/main"


def test_unpushed_commits_count(work: WorkTree) -> None:
    work.push("main")
    work.commit({"c": "1"})
    work.commit({"d": "1"})
    assert changed.of_checkout(work.path).files == ("c", "d")


def test_a_branch_is_compared_with_where_it_left_the_default_branch(work: WorkTree) -> None:
    parted = work.git("rev-parse", "HEAD")
    work.git("checkout", "-q", "-b", "feature")
    work.commit({"x": "1"})
    work.commit({"y": "1"})
    work.git("checkout", "-q", "main")
    work.commit({"of-main": "1"})
    work.git("checkout", "-q", "feature")
    decided = changed.of_checkout(work.path)
    assert (decided.files, decided.base, decided.since) == (("x", "y"), parted, "where it left main")
    assert changed.of_checkout(work.path, base="HEAD~1").files == ("y",)
    assert changed.of_checkout(work.path, target="main").files == ("x", "y")


def test_the_remotes_default_branch_is_taken_whatever_it_is_called(work: WorkTree) -> None:
    work.git("branch", "-m", "main", "develop")
    work.push("develop")
    work.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/develop")
    work.git("checkout", "-q", "-b", "feature")
    work.commit({"x": "1"})
    decided = changed.of_checkout(work.path)
    assert (decided.files, decided.since) == (("x",), "where it left origin/develop")


def test_a_shallow_clone_knows_what_its_history_still_holds(work: WorkTree, tmp_path: Path) -> None:
    work.commit({"c": "1"})
    work.push("main")
    remote = (tmp_path / "remote.git").as_uri()
    git("clone", "--quiet", "--depth=2", remote, str(tmp_path / "two"))
    assert changed.of_checkout(tmp_path / "two").files == ("c",)
    git("clone", "--quiet", "--depth=1", remote, str(tmp_path / "one"))
    decided = changed.of_checkout(tmp_path / "one")
    assert decided.files is None
    (tmp_path / "one" / "wip").write_text("1")
    assert changed.of_checkout(tmp_path / "one").files == ("wip",)


def test_a_directory_below_the_repository_sees_its_own_files_by_its_own_names(work: WorkTree) -> None:
    work.push("main")
    work.commit({"sub/x": "1", "other": "1"})
    assert changed.of_checkout(work.path / "sub").files == ("x",)
