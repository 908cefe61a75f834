"""Brings commits into a job's repository: by their names first, by a ref where the server does not give them so.

Only what the network did is tried again; what the server answered is told at once, with what to do.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Sequence

from kici.agent import refs
from kici.agent.errors import PreparationFailed
from kici.agent.git import Git, GitFailed, Remote

FETCH_S = 600.0
TRIES = 7
"""Together half a minute at least: the restart of an orchestrator or its database must not fail a job."""
FIRST_PAUSE_S = 0.5
"""Doubles with each try."""
ALL = 2_147_483_647
"""git's own number for the whole history."""
_SHA = re.compile(r"[0-9a-f]{40}")
_UNADVERTISED = re.compile(r"not our ref|unadvertised object")
_NETWORK = re.compile(
    r"Could not resolve|Failed to connect|Couldn't connect|Connection (reset|refused|timed out|was reset)|early EOF"
    r"|unexpected disconnect|hung up unexpectedly|Empty reply|transfer closed|Recv failure|Send failure"
    r"|SSL_ERROR_SYSCALL|Operation too slow|timed out|TLS connection was non-properly terminated"
    r"|invalid index-pack output|requested URL returned error: (429|5\d\d)"
)
_BRANCHES = "+refs/heads/*:refs/remotes/origin/*"
_TAGS = "+refs/tags/*:refs/tags/*"

Say = Callable[[str], None]


async def commits(git: Git, source: Remote, wanted: Sequence[str], ref: str, say: Say) -> None:
    """Those commits, without their history. Tags that point at them come along, so that `git describe` works.

    `ref`: where to look for them if the server gives no commit by its name. Raises `PreparationFailed`.
    """
    names = tuple(dict.fromkeys(wanted))
    for sha in names:
        if not _SHA.fullmatch(sha):
            raise PreparationFailed(f"{sha!r} is no full commit id")
    say(f"fetching {names[0]} from {source.url}")
    try:
        await _fetch(git, source, _by_name(names), 1, say)
    except GitFailed as error:
        if not _UNADVERTISED.search(str(error)):
            raise
        await _by_ref(git, source, names, ref, error, say)


async def history(git: Git, source: Remote, sha: str, ref: str, *, depth: int, tags: bool, say: Say) -> None:
    """`depth` commits of history, 0 = all, with all branches then; all tags where they are wanted."""
    specs = ([_BRANCHES] if depth == 0 else []) + ([_TAGS] if tags else [])
    say(f"fetching {f'{depth} commits' if depth else 'the whole history'}{' and all tags' if tags else ''}")
    try:
        await _fetch(git, source, [f"+{sha}:refs/kici/0", *specs], depth or ALL, say)
    except GitFailed as error:
        if not _UNADVERTISED.search(str(error)):
            raise
        for name in await _existing(git, source, refs.candidates(ref)):
            specs.append(f"+{name}:refs/kici/ref")
        await _fetch(git, source, specs or [_BRANCHES], ALL, say)


async def _by_ref(git: Git, source: Remote, names: Sequence[str], ref: str, error: GitFailed, say: Say) -> None:
    """A ref may have moved on, so that only its history has the commit; the commit itself is what counts."""
    say(f"the server gives no commit by its name; looking for it under {ref or 'all branches'}")
    existing = await _existing(git, source, refs.candidates(ref))
    specs = [f"+{name}:refs/kici/ref{number}" for number, name in enumerate(existing)]
    if specs:
        await _fetch(git, source, specs, 1, say)
    if await _missing(git, names):
        await _fetch(git, source, [*specs, _BRANCHES], ALL, say)
    missing = await _missing(git, names)
    if missing:
        raise PreparationFailed(
            f"commit {missing[0]} is not in {source.url} any more: {ref or 'no branch'} does not lead to it,"
            f" and the server says: {error}. If the branch was deleted or force-pushed, start a run of its present"
            " commit; else let the server give commits by name (git config uploadpack.allowAnySHA1InWant true)"
        )
    for number, sha in enumerate(names):
        await git.run("update-ref", f"refs/kici/{number}", sha)


async def _existing(git: Git, source: Remote, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    listing = await git.run("ls-remote", "--", source.url, *names, remote=source, timeout_s=FETCH_S)
    advertised = {line.partition("\t")[2] for line in listing.decode(errors="replace").splitlines()}
    return [name for name in names if name in advertised]


async def _missing(git: Git, names: Iterable[str]) -> list[str]:
    missing = []
    for sha in names:
        try:
            await git.run("cat-file", "-e", f"{sha}^{{commit}}")
        except GitFailed:
            missing.append(sha)
    return missing


def _by_name(names: Iterable[str]) -> list[str]:
    # git follows tags only to what gets a name here.
    return [f"+{sha}:refs/kici/{number}" for number, sha in enumerate(names)]


async def _fetch(git: Git, source: Remote, specs: Sequence[str], depth: int, say: Say) -> None:
    for tried in range(1, TRIES + 1):
        try:
            await git.run(
                *("fetch", "--quiet", f"--depth={depth}", "--no-recurse-submodules", "--no-write-fetch-head"),
                *("--", source.url, *specs),
                remote=source,
                timeout_s=FETCH_S,
            )
        except GitFailed as error:
            if tried == TRIES or not _NETWORK.search(str(error)):
                raise _explained(error, source) from error
            pause = FIRST_PAUSE_S * 2 ** (tried - 1) * random.uniform(1.0, 1.5)
            say(f"{error}; trying again in {pause:.1f} s")
            await asyncio.sleep(pause)
        else:
            return


def _explained(error: GitFailed, source: Remote) -> GitFailed:
    said = str(error)
    if re.search(r"Authentication failed|could not read (Username|Password)|error: (401|403|404)|not found", said):
        return GitFailed(
            f"{said}. {source.url} does not exist, or the credential that kici has for it may not read it: check the"
            " repository's source, its token or the forge's installation"
        )
    if "redirect" in said or re.search(r"error: 30\d", said):
        return GitFailed(
            f"{said}. {source.url} points elsewhere, where its credential must not go: register the new address"
        )
    return error
