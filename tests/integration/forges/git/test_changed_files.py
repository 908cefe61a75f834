"""Changed files on real repositories: a forge behind HTTP, one of our own, and somebody's checkout answer alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kici.cli.local import changed as checkout
from kici.engine import changed
from kici.engine.changed import Changed, Known
from kici.engine.events import Event, EventType
from kici.forges.git.fetch import Repositories
from kici.forges.git.remote import Remote
from tests.support.forge import Forge
from tests.support.git import WorkTree, bare
from tests.support.serving import serving


class Place:
    """Somebody who pushes, and one of the three who are asked."""

    def __init__(self, work: WorkTree, repositories: Repositories, remote: Remote | None) -> None:
        self.work = work
        self._repositories = repositories
        self._remote = remote

    async def decide(self, event: Event, known: Known) -> Changed:
        deciding = changed.of_event(event, known)
        if self._remote is None:
            return checkout.settle(self.work.path, deciding)
        return await self._repositories.settle(self._remote, deciding)


@pytest.fixture(params=["forge", "own", "checkout"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    work = WorkTree(tmp_path / "work", bare(tmp_path / "forge" / "team" / "app.git"))
    repositories = Repositories(tmp_path / "mirrors", {"team/app": tmp_path / "forge" / "team" / "app.git"})
    async with serving(Forge(tmp_path / "forge", password="s3cret")) as url:
        remotes = {"forge": Remote(f"{url}/team/app.git", password="s3cret"), "own": Remote("/git/team/app")}
        yield Place(work, repositories, remotes.get(request.param))


def push(sha: str, *, before: str = "", branch: str = "main") -> Event:
    return Event(EventType.PUSH, branch=branch, before=before, sha=sha)


def pull(sha: str, *, before: str) -> Event:
    return Event(EventType.PULL_REQUEST, branch="feature", base_branch="main", before=before, sha=sha)


async def test_after_a_force_push_the_trees_are_compared_whatever_the_histories_say(place: Place) -> None:
    work = place.work
    root = work.commit({"a": "1", "b": "1"})
    green = work.commit({"a": "2", "lost": "1"})
    work.push()
    work.git("reset", "-q", "--hard", root)
    forced = work.commit({"b": "2"})
    work.push()
    decided = await place.decide(push(forced, before=green), Known(last_success=green, has_run=True))
    assert decided.files == ("a", "b", "lost")  # `a` is as it was before the last success again, and `lost` is gone
    first = await place.decide(push(forced, before=green), Known())
    assert (first.files, first.base) == (("b",), root)


async def test_a_failed_push_counts_again_with_the_next_one(place: Place) -> None:
    work = place.work
    green = work.commit({"src/a": "1", "docs/b": "1"})
    failed = work.commit({"src/a": "broken"})
    head = work.commit({"docs/b": "2"})
    work.push()
    decided = await place.decide(push(head, before=failed), Known(last_success=green, has_run=True))
    assert decided.files == ("docs/b", "src/a")


async def test_a_new_branch_has_changed_what_it_has_beyond_the_default_branch(place: Place) -> None:
    work = place.work
    parted = work.commit({"a": "1"})
    work.git("checkout", "-q", "-b", "feature")
    work.commit({"src/x": "1"})
    head = work.commit({"src/ü y": "1", "a": None})
    work.git("checkout", "-q", "main")
    tip = work.commit({"docs/other": "1"})
    work.push("main", "feature")
    decided = await place.decide(push(head, branch="feature"), Known(default_tip=tip))
    assert (decided.files, decided.base) == (("a", "src/x", "src/ü y"), parted)


async def test_what_was_merged_from_the_base_does_not_count_for_a_pull_request(place: Place) -> None:
    work = place.work
    opened_at = work.commit({"a": "1"})
    work.git("checkout", "-q", "-b", "feature")
    work.commit({"mine": "1"})
    work.git("checkout", "-q", "main")
    tip = work.commit({"theirs": "1"})
    work.git("checkout", "-q", "feature")
    work.git("merge", "-q", "--no-edit", "main")
    head = work.commit({"mine too": "1"})
    work.push("main", "feature")
    # The payload's base is that of the day on which the pull request was opened.
    decided = await place.decide(pull(head, before=opened_at), Known(base_tip=tip))
    assert decided.files == ("mine", "mine too")


async def test_without_its_base_branch_a_pull_request_is_compared_with_the_commit_that_it_names(place: Place) -> None:
    work = place.work
    base = work.commit({"a": "1"})
    work.git("checkout", "-q", "-b", "feature")
    head = work.commit({"b": "1"})
    work.push("main", "feature")
    decided = await place.decide(pull(head, before=base), Known())
    assert decided.files == ("b",)


@pytest.mark.parametrize("known", [Known(last_success="1" * 40), Known(default_tip="1" * 40), Known()])
async def test_what_is_gone_or_unrelated_makes_everything_count(place: Place, known: Known) -> None:
    work = place.work
    head = work.commit({"a": "1"})
    work.push()
    decided = await place.decide(push(head, branch="dev", before="2" * 40), known)
    assert decided.files is None
    assert decided.since


async def test_histories_without_a_common_commit_make_everything_count(place: Place) -> None:
    work = place.work
    tip = work.commit({"a": "1"})
    work.git("checkout", "-q", "--orphan", "pages")
    head = work.commit({"index.html": "1"})
    work.push("main", "pages")
    decided = await place.decide(push(head, branch="pages"), Known(default_tip=tip))
    assert decided.files is None
    assert "none in common" in decided.since


async def test_more_files_than_a_webhook_lists_are_all_seen(place: Place) -> None:
    work = place.work
    green = work.commit({"a": "1"})
    head = work.commit({f"many/{n}": "1" for n in range(3_500)})
    work.push()
    decided = await place.decide(push(head), Known(last_success=green))
    assert decided.files is not None
    assert len(decided.files) == 3_500


async def test_more_files_than_anybody_looks_at_are_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kici.forges.git.changed", "kici.cli.local.changed"):
        monkeypatch.setattr(f"{module}.MAX_FILES", 3)
    work = place.work
    green = work.commit({"a": "1"})
    three = work.commit({"b": "1", "c": "1", "d": "1"})
    four = work.commit({"e": "1"})
    work.push()
    assert (await place.decide(push(three), Known(last_success=green))).files == ("b", "c", "d")
    decided = await place.decide(push(four), Known(last_success=green))
    assert (decided.files, decided.base) == (None, green)
