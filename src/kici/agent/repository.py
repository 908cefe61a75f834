"""The files of a job's repository that we write ourselves, before any user code could write there.

What `git init` and `git remote add` would make, and what a mirror lends: packs, the commits that they lead to, and the
ones among them whose parents are missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from kici.agent.git import Git

WALK_S = 600.0
_KICI = "refs/kici/"
_LENT = f"{_KICI}lent/"


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


def lend_refs(git: Git, tips: Iterable[str]) -> None:
    """So that git takes what they lead to for what is there. Replaces what `set_packed_refs` has set."""
    set_packed_refs(git, {f"{_LENT}{number}": sha for number, sha in enumerate(tips)})


def take_back_refs(git: Git) -> None:
    set_packed_refs(git, {name: sha for name, sha in _packed_refs(git).items() if not name.startswith(_LENT)})


def _packed_refs(git: Git) -> dict[str, str]:
    try:
        lines = (git.top / ".git" / "packed-refs").read_bytes().decode(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split(" ", 1) for line in lines if line[:1] not in ("#", "^"))
    return {name: sha for sha, name in pairs}


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


def refs(git: Git) -> dict[str, str]:
    """Full name → object, of those that git has made. No symbolic ones."""
    top = git.top / ".git"
    loose = (path for path in (top / "refs").rglob("*") if path.is_file())
    found = {str(path.relative_to(top)): path.read_text().strip() for path in loose}
    return _packed_refs(git) | {name: sha for name, sha in found.items() if not sha.startswith("ref:")}


def tags(git: Git) -> dict[str, str]:
    return {name: sha for name, sha in refs(git).items() if name.startswith("refs/tags/")}


async def keep_tags_at(git: Git, commits: Iterable[str]) -> None:
    """Remove those that a fetch has made because a mirror has the objects they point at."""
    wanted = set(commits)
    made = tags(git)
    if set(made.values()) <= wanted:
        return
    listing = await git.run(
        "for-each-ref", "--format=%(refname)", *(f"--points-at={sha}" for sha in wanted), "refs/tags"
    )
    await _remove_refs(git, made.keys() - set(listing.decode(errors="surrogateescape").splitlines()))


async def keep_tags_of_history(git: Git) -> None:
    """Remove those that a fetch has made because a mirror has the objects they point at, and no other ref leads to."""
    made = tags(git)
    if not made:
        return
    feed = "".join(f"{name}^{{}}\n" for name in made).encode(errors="surrogateescape")
    answers = (await git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", feed=feed)).decode().splitlines()
    pointed = dict(zip(made, (answer.split(" ") for answer in answers), strict=True))
    others = ("--remotes", f"--glob={_KICI}*")
    unreached = set((await git.run("rev-list", "--tags", "--not", *others, timeout_s=WALK_S)).decode().split())
    if any(kind != "commit" for _, kind in pointed.values()):
        listing = await git.run("rev-list", "--objects", "--no-object-names", *others, timeout_s=WALK_S)
        reached = set(listing.decode().split())
        unreached |= {sha for sha, kind in pointed.values() if kind != "commit" and sha not in reached}
    await _remove_refs(git, (name for name, (sha, _) in pointed.items() if sha in unreached))


async def _remove_refs(git: Git, names: Iterable[str]) -> None:
    feed = "".join(f"delete {name}\0\0" for name in names)
    if feed:
        await git.run("update-ref", "--stdin", "-z", feed=feed.encode(errors="surrogateescape"))


def _write(git: Git, name: str, content: str) -> None:
    path = git.top / ".git" / name
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    git.space.hand_over(path)
