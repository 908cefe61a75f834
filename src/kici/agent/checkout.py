"""Brings the code of exactly one commit, and the bytes of `.kici/` at the commit whose workflows run.

Only object names are asked for, never refs. The bytes of `.kici/` are read from git's objects, not from the working
tree: no filter, no line-ending conversion and no user code stands between the commit and the check.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import PurePosixPath

from msgspec import Struct

from kici.agent.errors import PreparationFailed
from kici.agent.git import Git, GitFailed, Remote, basic
from kici.agent.workspace import Workspace
from kici.wire.agent import Checkout, Dispatch

FETCH_S = 600.0
CHECKOUT_S = 600.0
TRIES = 3
MAX_FILES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Of everything under `.kici/`."""
_SHA = re.compile(r"[0-9a-f]{40}")
_HOPELESS = re.compile(
    r"not our ref|Authentication failed|could not read Username|requested URL returned error: 40[134]"
)
_KINDS = {"120000": "a symbolic link", "160000": "a submodule"}


class _Entry(Struct, frozen=True):
    path: str
    object: str
    size: int


def remote(dispatch: Dispatch, orchestrator_url: str) -> Remote:
    """A path is one of the orchestrator's own, and opened by the job's token unless it says otherwise."""
    checkout = dispatch.checkout
    own = checkout.url.startswith("/")
    if checkout.password:
        authorization = basic(checkout.username, checkout.password)
    else:
        authorization = f"Bearer {dispatch.job_token}" if own else ""
    return Remote(orchestrator_url + checkout.url if own else checkout.url, authorization)


async def fetch(space: Workspace, source: Remote, checkout: Checkout, say: Callable[[str], None]) -> Git:
    """The objects of the commits that the job needs, without their history. Raises `PreparationFailed`.

    Tags that point at them come along, so that `git describe` works where a release is built.
    """
    for sha in (checkout.sha, checkout.workflow_sha):
        if not _SHA.fullmatch(sha):
            raise PreparationFailed(f"{sha!r} is no full commit id")
    _make_repository(space, source.url)
    git = Git(space)
    commits = dict.fromkeys((checkout.sha, checkout.workflow_sha))
    # git follows tags only to what gets a name here.
    kept = [f"+{sha}:refs/kici/{number}" for number, sha in enumerate(commits)]
    say(f"fetching {checkout.sha} from {source.url}")
    for tries_left in reversed(range(TRIES)):
        try:
            await git.run(
                *("fetch", "--quiet", "--depth=1", "--no-recurse-submodules", "--no-write-fetch-head"),
                *("--", source.url, *kept),
                remote=source,
                timeout_s=FETCH_S,
            )
        except GitFailed as error:
            if not tries_left or _HOPELESS.search(str(error)):
                raise
            say(f"{error}; trying again")
            await asyncio.sleep(1.0)
        else:
            break
    return git


async def kici_files(git: Git, sha: str) -> dict[str, bytes]:
    """Path below `.kici/` → bytes, at this commit. Raises `PreparationFailed` for whatever is no regular file."""
    listing = await git.run("ls-tree", "-r", "-z", "-l", "--full-tree", sha, "--", ".kici")
    entries = [_entry(line) for line in listing.split(b"\0") if line]
    if len(entries) > MAX_FILES or sum(entry.size for entry in entries) > MAX_BYTES:
        raise PreparationFailed(
            f".kici/ has {len(entries):,} files; the limits are {MAX_FILES:,} files and {MAX_BYTES // 1_048_576} MiB"
        )
    feed = "".join(f"{entry.object}\n" for entry in entries).encode()
    answer = await git.run("cat-file", "--batch", feed=feed) if entries else b""
    files, position = {}, 0
    for entry in entries:
        start = answer.index(b"\n", position) + 1
        files[entry.path] = answer[start : start + entry.size]
        position = start + entry.size + 1
    return files


async def work_tree(git: Git, space: Workspace, sha: str) -> None:
    """The files of the commit in `src/`. Programs that its attributes name (LFS and the like) do not run."""
    await git.run("checkout", "--quiet", "--detach", "--force", sha, timeout_s=CHECKOUT_S)
    # Steps may use LFS themselves.
    (space.src / ".git" / "info" / "attributes").unlink()


def no_work_tree(space: Workspace) -> None:
    """The job wants no checkout: `src/` is empty."""
    shutil.rmtree(space.src / ".git")


def _make_repository(space: Workspace, url: str) -> None:
    """What `git init` and `git remote add` would make, and attributes that win over the repository's own."""
    directory = space.src / ".git"
    for made in (directory, directory / "objects", directory / "refs", directory / "info"):
        made.mkdir()
        space.hand_over(made)
    contents = {
        "HEAD": "ref: refs/heads/main\n",
        "config": "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tlogallrefupdates = true\n"
        f'[remote "origin"]\n\turl = "{url}"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n',
        "info/attributes": "* !filter !diff !merge\n",
    }
    for name, content in contents.items():
        (directory / name).write_text(content)
        space.hand_over(directory / name)


def _entry(line: bytes) -> _Entry:
    about, _, raw_path = line.partition(b"\t")
    mode, kind, name, size = about.decode().split()
    path = raw_path.decode(errors="backslashreplace")
    if mode not in ("100644", "100755", "100664"):
        raise PreparationFailed(f"{path} is {_KINDS.get(mode, kind)}: only regular files may stand under .kici/")
    below = PurePosixPath(path)
    if below.parts[0] != ".kici" or len(below.parts) < 2 or ".." in below.parts or str(below) != path:
        raise PreparationFailed(f"{path!r} is no path under .kici/")
    return _Entry(path.removeprefix(".kici/"), name, int(size))
