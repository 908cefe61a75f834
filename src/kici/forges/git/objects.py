"""Reads files at a commit out of a bare repository."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kici.forges.git import command
from kici.forges.git.errors import CommitMissing, GitUnavailable, classify


class TooLarge(Struct, frozen=True):
    """The file is there and has more bytes than was asked for."""

    size: int


Blob = bytes | TooLarge | None
"""None: the commit has no such file."""


async def read_blobs(
    git_dir: Path,
    sha: str,
    paths: Sequence[str],
    *,
    max_bytes: int,
    config: Mapping[str, str] | None = None,
    timeout_s: float = command.DEFAULT_TIMEOUT_S,
) -> dict[str, Blob]:
    """The files `paths` at the commit, each up to `max_bytes`. Raises `CommitMissing` if there is no such commit.

    In a partial clone git fetches by itself what is missing; `config` then holds the credentials.
    """
    blobs: dict[str, Blob] = {}
    try:
        async with asyncio.timeout(timeout_s):
            while len(blobs) < len(paths):  # a file that is too large costs its process
                rest = [path for path in paths if path not in blobs]
                blobs |= await _read_until_too_large(git_dir, sha, rest, max_bytes, config)
    except TimeoutError as error:
        raise GitUnavailable(f"reading files at {sha} took longer than {timeout_s:g} s and was stopped") from error
    return blobs


async def _read_until_too_large(
    git_dir: Path, sha: str, paths: Sequence[str], max_bytes: int, config: Mapping[str, str] | None
) -> dict[str, Blob]:
    blobs: dict[str, Blob] = {}
    async with command.start(["--git-dir", str(git_dir), "cat-file", "--batch"], config=config) as git:
        try:
            if await _ask(git, f"{sha}^{{commit}}", max_bytes) is None:
                raise CommitMissing(f"the repository has no commit {sha}")
            for path in paths:
                blobs[path] = await _ask(git, f"{sha}:{path}", max_bytes)
                if isinstance(blobs[path], TooLarge):
                    break
        except (asyncio.IncompleteReadError, BrokenPipeError, ConnectionResetError):
            git.kill()
            _, said = await git.ended()
            raise classify(f"reading files at {sha}", said) from None
    return blobs


async def _ask(git: command.Running, name: str, max_bytes: int) -> Blob:
    git.stdin.write(name.encode() + b"\n")
    await git.stdin.drain()
    header = (await git.stdout.readuntil(b"\n")).split()
    if len(header) != 3 or not header[2].isdigit():  # `<name> missing`
        return None
    size = int(header[2])
    if size > max_bytes:
        return TooLarge(size)
    content = (await git.stdout.readexactly(size + 1))[:-1]
    return content if header[1] in (b"blob", b"commit") else None
