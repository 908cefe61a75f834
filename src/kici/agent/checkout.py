"""Brings the code of exactly one commit, and the bytes of `.kici/` at the commit whose workflows run.

The commit counts, whatever its refs have become. The bytes of `.kici/` are read from git's objects, not from the
working tree: no filter, no line-ending conversion and no user code stands between the commit and the check.
"""

from __future__ import annotations

import shutil
from pathlib import PurePosixPath

from msgspec import Struct

from kici.agent import fetching, lfs, repository, submodules
from kici.agent.errors import PreparationFailed
from kici.agent.fetching import Say
from kici.agent.git import Git, GitFailed, Remote, basic
from kici.agent.mirrors import Mirrors
from kici.agent.workspace import Workspace
from kici.engine.lockfile import LockCheckout, SubmoduleLevels
from kici.wire.agent import Checkout, Dispatch

CHECKOUT_S = 600.0
MAX_LEVELS = 10
"""Of submodules in submodules."""
MAX_FILES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Of everything under `.kici/`."""
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


async def fetch(space: Workspace, source: Remote, checkout: Checkout, mirrors: Mirrors, say: Say) -> Git:
    """The objects of the commits that the job needs, without their history. Raises `PreparationFailed`."""
    git = Git(space)
    repository.make(git, source.url)
    wanted = checkout.sha, checkout.workflow_sha
    await mirrors.commits(git, source, wanted, checkout.ref, say, trusted=checkout.trusted)
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


async def work_tree(
    git: Git, source: Remote, checkout: Checkout, wanted: bool | LockCheckout, mirrors: Mirrors, say: Say
) -> None:
    """The files of the commit in `src/`, as the job asks for them. Raises `PreparationFailed`.

    Programs that its attributes name do not run, but LFS where the job asks for it.
    """
    options = wanted if isinstance(wanted, LockCheckout) else LockCheckout()
    # The head of an untrusted pull request must not spend the repository's credential on what it names.
    trusted = checkout.sha == checkout.workflow_sha
    if options.depth == 0:
        names = checkout.sha, checkout.workflow_sha
        await mirrors.history(git, source, names, checkout.ref, say, tags=options.tags, trusted=checkout.trusted)
    elif options.depth != 1 or options.tags:
        depth, tags = options.depth, options.tags
        await fetching.history(git, source, (checkout.sha,), checkout.ref, depth=depth, tags=tags, say=say)
    await _fill(git, source, checkout.sha, options, trusted, say)
    if options.submodules is not SubmoduleLevels.NONE:
        levels = MAX_LEVELS if options.submodules is SubmoduleLevels.ALL else 1
        bounds = Bounds(levels, trusted, mirrors, kept_as_trusted=trusted and checkout.trusted)
        await _fill_submodules(git, source, checkout.sha, options, bounds, say)


class Bounds(Struct):
    levels: int
    trusted: bool
    mirrors: Mirrors
    kept_as_trusted: bool
    left: int = submodules.MAX
    """Of submodules of all levels."""


async def _fill_submodules(
    git: Git, source: Remote, sha: str, options: LockCheckout, bounds: Bounds, say: Say, level: int = 1, below: str = ""
) -> None:
    for one in await submodules.found(git, source, sha, options.sparse if level == 1 else ()):
        bounds.left -= 1
        if bounds.left < 0:
            raise PreparationFailed(f"there are more than {submodules.MAX} submodules: does one contain itself?")
        path = f"{below}{one.path}"
        submodules.check_place(git.space.src, path)
        remote = source.at(one.url, opened=bounds.trusted)
        inner = Git(git.space, path)
        repository.make(inner, remote.url)
        say(f"submodule {path}")
        try:
            await bounds.mirrors.commits(inner, remote, (one.sha,), "", say, trusted=bounds.kept_as_trusted)
        except GitFailed as error:
            raise PreparationFailed(f"submodule {path}: {error}") from error
        await _fill(inner, remote, one.sha, LockCheckout(lfs=options.lfs), bounds.trusted, say)
        if level < bounds.levels:
            await _fill_submodules(inner, remote, one.sha, options, bounds, say, level + 1, f"{path}/")
        elif bounds.levels == MAX_LEVELS and await submodules.found(inner, remote, one.sha, ()):
            raise PreparationFailed(f"submodules are nested deeper than {MAX_LEVELS} levels at {path}")


async def _fill(git: Git, source: Remote, sha: str, options: LockCheckout, trusted: bool, say: Say) -> None:
    if options.sparse:
        directories = "".join(f"{directory}\n" for directory in options.sparse)
        await git.run("sparse-checkout", "set", "--cone", "--stdin", feed=directories.encode())
    await git.run("checkout", "--quiet", "--detach", "--force", sha, timeout_s=CHECKOUT_S)
    missing = [directory for directory in options.sparse if not (git.top / directory).is_dir()]
    if missing:
        raise PreparationFailed(f"sparse names {missing[0]!r}, and the commit has no such directory")
    # Steps may use LFS themselves.
    (git.top / ".git" / "info" / "attributes").unlink()
    if options.lfs:
        await lfs.fill(git, source, sha, trusted, say)


def no_work_tree(space: Workspace) -> None:
    """The job wants no checkout: `src/` is empty."""
    shutil.rmtree(space.src / ".git")


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
