"""The files that Git LFS keeps, in place of their pointers.

`git-lfs` runs as git does: as the slot's user, confined, configured by its environment. Where it asks is ours to say:
the repository's own server. What `.lfsconfig` says is read, and refused where it would lead the credential astray.
"""

from __future__ import annotations

import shutil

from kici.agent.errors import PreparationFailed
from kici.agent.fetching import Say
from kici.agent.git import Git, GitFailed, Remote
from kici.agent.lfs_mirrors import LfsMirrors

FETCH_S = 3_600.0
MAX_LFSCONFIG_BYTES = 65_536
_FILTER = {
    "filter.lfs.clean": "git-lfs clean -- %f",
    "filter.lfs.smudge": "git-lfs smudge -- %f",
    "filter.lfs.process": "git-lfs filter-process",
    "filter.lfs.required": "true",
}


async def fill(
    git: Git, source: Remote, sha: str, mirrors: LfsMirrors, say: Say, *, trusted: bool, kept_as_trusted: bool
) -> None:
    """`trusted`: another place at the same origin gets the credential too. Raises `PreparationFailed`."""
    if shutil.which("git-lfs") is None:
        raise PreparationFailed(
            "the job wants Git LFS, and the agent has no git-lfs: install it, or leave lfs=True out"
        )
    endpoint = await _endpoint(git, source, sha, trusted)
    config = _FILTER | {
        "lfs.url": endpoint.url,
        "lfs.pushurl": endpoint.url,
        "lfs.concurrentTransfers": "4",
        "lfs.transfer.maxRetries": "3",
        "lfs.locksverify": "false",
        "lfs.skipdownloaderrors": "false",
    }

    async def pull() -> None:
        await git.run("lfs", "pull", remote=endpoint, config=config, timeout_s=FETCH_S)

    say("fetching what Git LFS keeps")
    try:
        if endpoint.url == _own(source):
            await mirrors.around(pull, git, source, sha, say, trusted=kept_as_trusted)
        else:
            await pull()
    except GitFailed as error:
        raise PreparationFailed(f"Git LFS: {error}") from error
    _leave_filter(git)


async def _endpoint(git: Git, source: Remote, sha: str, trusted: bool) -> Remote:
    own = _own(source)
    named = await _named(git, sha)
    if not named or named.rstrip("/") == own:
        return source.at(own, opened=True)
    try:
        other = source.at(named, opened=trusted)
    except PreparationFailed:
        raise PreparationFailed(f".lfsconfig names {named[:200]!r}: only an http(s):// address is used") from None
    if other.origin != source.origin:
        raise PreparationFailed(
            f".lfsconfig names another server, {other.origin}, where the repository's credential must not go: kici"
            f" fetches from {source.origin} alone"
        )
    return other


def _own(source: Remote) -> str:
    url = source.url.rstrip("/")
    return f"{url}{'' if url.endswith('.git') else '.git'}/info/lfs"


async def _named(git: Git, sha: str) -> str:
    """The address in `.lfsconfig` of the commit; empty if it names none."""
    try:
        size = int(await git.run("cat-file", "-s", f"{sha}:.lfsconfig"))
    except GitFailed:
        return ""
    if size > MAX_LFSCONFIG_BYTES:
        raise PreparationFailed(f".lfsconfig has {size:,} bytes; the limit is {MAX_LFSCONFIG_BYTES:,}")
    try:
        listing = await git.run("config", "--no-includes", "--blob", f"{sha}:.lfsconfig", "--list", "--null")
    except GitFailed as error:
        raise PreparationFailed(f".lfsconfig cannot be read: {error}") from error
    entries = dict(entry.partition("\n")[::2] for entry in listing.decode(errors="replace").split("\0"))
    return next((entries[key] for key in ("lfs.url", "remote.origin.lfsurl") if entries.get(key)), "")


def _leave_filter(git: Git) -> None:
    """So that `git status` and `git add` of steps know these files. No credential is in it."""
    with (git.top / ".git" / "config").open("a") as config:
        config.write('[filter "lfs"]\n')
        for key, value in _FILTER.items():
            config.write(f'\t{key.rpartition(".")[2]} = "{value}"\n')
