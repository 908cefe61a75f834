"""Serves a bare repository for reading over smart HTTP: what `git clone` and `git fetch` speak, and no push.

A request's body is small (which commits are wanted, which are there) and is taken whole, with a bound, before git
starts; the answer, which may be gigabytes, is streamed.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import structlog

from kici.errors import KiciError
from kici.forges.git import command
from kici.forges.git.errors import classify

log = structlog.get_logger(__name__)

SERVICE = "git-upload-pack"
ADVERTISEMENT_TYPE = f"application/x-{SERVICE}-advertisement"
RESULT_TYPE = f"application/x-{SERVICE}-result"
REQUEST_TYPE = f"application/x-{SERVICE}-request"
MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""Of a request's body, unpacked: some 160,000 commits that a client has."""

_CHUNK = 65_536
_PROTOCOL = re.compile(r"version=[012]")


class BadGitRequest(KiciError):
    code = "git_request_invalid"
    status = 400


class GitRequestTooLarge(KiciError):
    code = "too_large"
    status = 413


async def advertisement(repository: Path, protocol: str) -> bytes:
    """Answer to `GET info/refs?service=git-upload-pack`. `protocol` is the header `Git-Protocol`."""
    args = ["upload-pack", "--strict", "--stateless-rpc", "--advertise-refs", str(repository)]
    done = await _collect(args, protocol)
    if _version(protocol) == "version=2":
        return done
    banner = f"# service={SERVICE}\n"
    return f"{len(banner) + 4:04x}{banner}0000".encode() + done


async def request_body(chunks: AsyncIterator[bytes], encoding: str) -> bytes:
    """The whole body, unpacked if `Content-Encoding` says gzip."""
    if encoding not in ("", "identity", "gzip"):
        raise BadGitRequest(f"Content-Encoding {encoding[:40]!r} is not read here: git sends gzip or nothing")
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    body = bytearray()
    async for chunk in chunks:
        try:
            body += unpack.decompress(chunk, MAX_REQUEST_BYTES + 1 - len(body)) if unpack else chunk
        except zlib.error:
            raise BadGitRequest("the body says that it is gzip and is not") from None
        if len(body) > MAX_REQUEST_BYTES:
            raise GitRequestTooLarge(f"a git request has at most {MAX_REQUEST_BYTES:,} bytes")
    if unpack and not unpack.eof:
        raise BadGitRequest("the gzip body ends too early")
    return bytes(body)


async def upload_pack(repository: Path, protocol: str, request: bytes) -> AsyncGenerator[bytes, None]:
    """Answer to `POST git-upload-pack`, piece by piece. git does not outlive the iteration."""
    args = ["upload-pack", "--strict", "--stateless-rpc", str(repository)]
    async with command.start(args, extra_env=_environment(protocol)) as git:
        feeding = asyncio.create_task(git.feed(request))
        try:
            while chunk := await git.stdout.read(_CHUNK):
                yield chunk
            code, said = await git.ended()
        finally:
            git.kill()
            await feeding
    if code:  # the client has been told over the protocol, or has gone
        log.info("upload-pack ended with an error", code=code, said=said.decode(errors="replace")[-500:])


async def _collect(args: list[str], protocol: str) -> bytes:
    async with asyncio.timeout(command.DEFAULT_TIMEOUT_S), command.start(args, extra_env=_environment(protocol)) as git:
        git.stdin.close()
        answer = bytearray()
        while chunk := await git.stdout.read(_CHUNK):
            answer += chunk
        code, said = await git.ended()
    if code:
        raise classify("serving the repository", said)
    return bytes(answer)


def _version(protocol: str) -> str:
    found = _PROTOCOL.search(protocol)
    return found[0] if found else "version=0"


def _environment(protocol: str) -> dict[str, str]:
    return {"GIT_PROTOCOL": _version(protocol)}
