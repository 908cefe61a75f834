"""The files of a job's repository that we write ourselves, before any user code could write there.

What `git init` and `git remote add` would make, and what a mirror lends: packs, the commits that they lead to, and the
ones among them whose parents are missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from kici.agent.git import Git


def make(git: Git, url: str) -> None:
    """Also with attributes that win over the repository's own."""
    directory = git.top / ".git"
    for made in (directory, directory / "objects", directory / "refs", directory / "info"):
        made.mkdir()
        git.space.hand_over(made)
    _write(git, "HEAD", "ref: refs/heads/main\n")
    _write(
        git,
        "config",
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tlogallrefupdates = true\n"
        f'[remote "origin"]\n\turl = "{url}"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n',
    )
    _write(git, "info/attributes", "* !filter !diff !merge\n")


def make_again(git: Git, url: str) -> None:
    """As if nothing had been fetched."""
    shutil.rmtree(git.top / ".git")
    make(git, url)


def packs(git: Git) -> Path:
    """The directory, whether or not it is there."""
    return git.top / ".git" / "objects" / "pack"


def make_packs(git: Git) -> Path:
    directory = packs(git)
    directory.mkdir()
    git.space.hand_over(directory)
    return directory


def set_packed_refs(git: Git, refs: Mapping[str, str]) -> None:
    """Full name → object; no others. git itself writes there only when it removes a ref."""
    if refs:
        lines = (f"{refs[name]} {name}\n" for name in sorted(refs, key=lambda name: name.encode()))
        _write(git, "packed-refs", "".join(["# pack-refs with: sorted \n", *lines]))
    else:
        (git.top / ".git" / "packed-refs").unlink(missing_ok=True)


def shallow(git: Git) -> tuple[str, ...]:
    """Commits whose parents are not there, and do not count as missing."""
    try:
        return tuple((git.top / ".git" / "shallow").read_text().split())
    except FileNotFoundError:
        return ()


def set_shallow(git: Git, commits: Collection[str]) -> None:
    if commits:
        _write(git, "shallow", "".join(f"{sha}\n" for sha in commits))
    else:
        (git.top / ".git" / "shallow").unlink(missing_ok=True)


def tags(git: Git) -> dict[str, str]:
    """Full name → object, of the tags that a fetch has made."""
    top = git.top / ".git"
    found = (path for path in (top / "refs" / "tags").rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_text().strip() for path in found}


async def keep_tags_at(git: Git, commits: Iterable[str]) -> None:
    """Remove those that a fetch has made because a mirror has the objects they point at."""
    wanted = set(commits)
    made = tags(git)
    if set(made.values()) <= wanted:
        return
    listing = await git.run(
        "for-each-ref", "--format=%(refname)", *(f"--points-at={sha}" for sha in wanted), "refs/tags"
    )
    others = made.keys() - set(listing.decode(errors="surrogateescape").splitlines())
    feed = "".join(f"delete {name}\0\0" for name in others)
    if feed:
        await git.run("update-ref", "--stdin", "-z", feed=feed.encode(errors="surrogateescape"))


def _write(git: Git, name: str, content: str) -> None:
    path = git.top / ".git" / name
    path.write_text(content, encoding="utf-8")
    git.space.hand_over(path)
