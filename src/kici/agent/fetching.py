"""Brings commits into a job's repository: by their names first, by a ref where the server does not give them so.

Only what the network did is tried again; what the server answered is told at once, with what to do.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct

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
_REFUSED = re.compile(
    r"Authentication failed|could not read (Username|Password)|error: (401|403|404)|repository '.*' not found"
)
_REDIRECTED = re.compile(r"redirect|error: 30\d")
_TOO_SLOW = re.compile(r"took longer than")
_PEELED = "^{}"
"""What a server puts behind a tag's name where it says what an annotated one points at."""
_BRANCHES = "+refs/heads/*:refs/remotes/origin/*"
_TAGS = "+refs/tags/*:refs/tags/*"

Say = Callable[[str], None]


class Tag(Struct, frozen=True):
    name: str
    """In full."""
    object: str
    is_annotated: bool
    """The object is one of its own, which points at the commit."""


def checked(wanted: Sequence[str]) -> tuple[str, ...]:
    """Each once. Raises `PreparationFailed` for what is no commit's full name."""
    names = tuple(dict.fromkeys(wanted))
    for sha in names:
        if not _SHA.fullmatch(sha):
            raise PreparationFailed(f"{sha!r} is no full commit id")
    return names


async def commits(git: Git, source: Remote, names: Sequence[str], ref: str, say: Say) -> bool:
    """Those commits, without their history. Tags that point at them come along, so that `git describe` works.

    `ref`: where to look for them if the server gives no commit by its name: the answer is False then, and there may be
    more than was asked for. Raises `PreparationFailed`.
    """
    try:
        await by_name(git, source, names, say)
    except GitFailed as error:
        if not is_unadvertised(error):
            raise
        await _by_ref(git, source, names, ref, error, say)
        return False
    return True


async def by_name(git: Git, source: Remote, names: Sequence[str], say: Say) -> None:
    await _fetch(git, source, _named(names), 1, say)


async def tags_at(git: Git, source: Remote, commits: Collection[str], say: Say) -> list[Tag]:
    """The tags that point at one of the commits, as the server says; it says nothing to whom it gives no code."""
    listing = await _tried(git, source, say, "ls-remote", "--quiet", "--tags", "--", source.url)
    objects, peeled = {}, {}
    for line in listing.decode(errors="surrogateescape").splitlines():
        sha, _, name = line.partition("\t")
        if name.endswith(_PEELED):
            peeled[name.removesuffix(_PEELED)] = sha
        elif _SHA.fullmatch(sha) and refs.is_name(name):
            objects[name] = sha
    return [
        Tag(name, sha, is_annotated=name in peeled) for name, sha in objects.items() if peeled.get(name, sha) in commits
    ]


def numbered(names: Iterable[str]) -> dict[str, str]:
    return {f"refs/kici/{number}": sha for number, sha in enumerate(names)}


def is_unadvertised(error: GitFailed) -> bool:
    """The server gives no commit by its name, or does not have this one."""
    return bool(_UNADVERTISED.search(str(error)))


def is_of_server(error: GitFailed) -> bool:
    """What the network did or the server answered, for which nothing on this machine can be to blame."""
    return any(pattern.search(str(error)) for pattern in (_UNADVERTISED, _NETWORK, _REFUSED, _REDIRECTED, _TOO_SLOW))


async def history(
    git: Git, source: Remote, names: Sequence[str], ref: str, *, depth: int, tags: bool, say: Say
) -> bool:
    """`depth` commits of history, 0 = all, with all branches then; all tags where they are wanted.

    False if the server gives no commit by its name: then it is the history of what `ref` and the branches have become.
    """
    specs = _also(branches=depth == 0, tags=tags)
    say(f"fetching {f'{depth} commits' if depth else 'the whole history'}{' and all tags' if tags else ''}")
    try:
        await _fetch(git, source, [*_named(names), *specs], depth or ALL, say)
    except GitFailed as error:
        if not is_unadvertised(error):
            raise
    else:
        return True
    for name in await _existing(git, source, refs.candidates(ref)):
        specs.append(f"+{name}:refs/kici/ref")
    await _fetch(git, source, specs or [_BRANCHES], ALL, say)
    return False


async def all_history(git: Git, source: Remote, names: Sequence[str], *, tags: bool, say: Say) -> None:
    """The same with `depth` 0, into a repository that is not shallow, by names alone."""
    say(f"fetching what is new of the whole history{' and all tags' if tags else ''}")
    await _fetch(git, source, [*_named(names), *_also(branches=True, tags=tags)], None, say)


def _named(names: Iterable[str]) -> list[str]:
    # git follows tags only to what gets a name here.
    return [f"+{sha}:{ref}" for ref, sha in numbered(names).items()]


def _also(*, branches: bool, tags: bool) -> list[str]:
    return [_BRANCHES] * branches + [_TAGS] * tags


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
    for name, sha in numbered(names).items():
        await git.run("update-ref", name, sha)


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


async def _fetch(git: Git, source: Remote, specs: Sequence[str], depth: int | None, say: Say) -> None:
    """`depth` None: a repository that is not shallow stays so."""
    options = ["--quiet", "--no-recurse-submodules", "--no-write-fetch-head"]
    if depth is not None:
        options.append(f"--depth={depth}")
    await _tried(git, source, say, "fetch", *options, "--", source.url, *specs)


async def _tried(git: Git, source: Remote, say: Say, *arguments: str) -> bytes:
    for tried in range(1, TRIES + 1):
        try:
            return await git.run(*arguments, remote=source, timeout_s=FETCH_S)
        except GitFailed as error:
            if tried == TRIES or not _NETWORK.search(str(error)):
                raise _explained(error, source) from error
            pause = FIRST_PAUSE_S * 2 ** (tried - 1) * random.uniform(1.0, 1.5)
            say(f"{error}; trying again in {pause:.1f} s")
            await asyncio.sleep(pause)
    raise AssertionError


def _explained(error: GitFailed, source: Remote) -> GitFailed:
    said = str(error)
    if _REFUSED.search(said):
        return GitFailed(
            f"{said}. {source.url} does not exist, or the credential that kici has for it may not read it: check the"
            " repository's source, its token or the forge's installation"
        )
    if _REDIRECTED.search(said):
        return GitFailed(
            f"{said}. {source.url} points elsewhere, where its credential must not go: register the new address"
        )
    return error
