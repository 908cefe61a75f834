"""`/git/<repository>/…`: the repositories that the orchestrator keeps, for `git clone` and `git fetch`, and no push.

A job reads its own repository with the token of its attempt; an operator reads any with an admin token. Tokens come as
the password of HTTP Basic, with any user name, because that is what git sends.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.response import Stream

from kici.forges.git import serve
from kici.orchestrator.errors import Forbidden, Invalid, NotFound, Unauthorized
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.roles import may
from kici.orchestrator.identity.tokens import JOB_PREFIX
from kici.wire.api import Problem

MAX_AT_ONCE = 32
"""Answers being streamed; each is a git process. More wait."""
_ALL = "*"
_INFO_REFS = "/info/refs"
_UPLOAD_PACK = "/git-upload-pack"
_NOT_CACHED = {"Cache-Control": "no-cache, max-age=0, must-revalidate"}


def routes(access: Access, repositories: Mapping[str, Path]) -> list[HTTPRouteHandler]:
    """`repositories`: name → bare repository. Nothing of a request's path reaches the file system."""
    at_once = asyncio.Semaphore(MAX_AT_ONCE)

    async def opened(request: Request[Any, Any, Any], path: str, suffix: str) -> Path | Response[Problem]:
        try:
            granted = await _readable(access, _token(request.headers.get("authorization", "")))
        except Unauthorized as error:
            return _challenge(error)
        if not path.endswith(suffix):
            raise NotFound("there is nothing here that git could read")
        name = path.removesuffix(suffix).strip("/").removesuffix(".git")
        if name not in repositories or granted not in (_ALL, name):
            raise NotFound("there is no such repository, or the token is for another one")
        return repositories[name]

    @get("/git/{path:path}", include_in_schema=False)
    async def info_refs(
        request: Request[Any, Any, Any], path: FromPath[str], service: FromQuery[str] = ""
    ) -> Response[Any]:
        repository = await opened(request, path, _INFO_REFS)
        if isinstance(repository, Response):
            return repository
        if service != serve.SERVICE:
            raise Forbidden("this repository is read only over HTTP, and only by the smart protocol")
        answer = await serve.advertisement(repository, _protocol(request))
        return Response(answer, media_type=serve.ADVERTISEMENT_TYPE, headers=_NOT_CACHED)

    @post("/git/{path:path}", include_in_schema=False, status_code=200, request_max_body_size=None)
    async def upload_pack(request: Request[Any, Any, Any], path: FromPath[str]) -> Response[Any]:
        repository = await opened(request, path, _UPLOAD_PACK)
        if isinstance(repository, Response):
            return repository
        if request.headers.get("content-type", "").partition(";")[0].strip() != serve.REQUEST_TYPE:
            raise Invalid(f"the content type must be {serve.REQUEST_TYPE}")
        body = await serve.request_body(request.stream(), request.headers.get("content-encoding", "").lower())
        answer = _one_of(at_once, serve.upload_pack(repository, _protocol(request), body))
        return Stream(answer, media_type=serve.RESULT_TYPE, headers=_NOT_CACHED)

    return [info_refs, upload_pack]


async def _readable(access: Access, token: str) -> str:
    """Name of the one repository that the token opens, or `_ALL`. Raises `Unauthorized` or `Forbidden`."""
    if token.startswith(JOB_PREFIX):
        return (await access.job(token)).repository
    principal = await access.principal(token)
    if not may(principal.role, "run.trigger"):
        raise Forbidden(f"the role {principal.role!r} does not read code: that takes the permission run.trigger")
    return _ALL


async def _one_of(at_once: asyncio.Semaphore, answer: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with at_once, aclosing(answer):
        async for chunk in answer:
            yield chunk


def _token(authorization: str) -> str:
    """The password of HTTP Basic, or a bearer token; empty if there is neither."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        pair = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return pair.partition(":")[2]


def _protocol(request: Request[Any, Any, Any]) -> str:
    return request.headers.get("git-protocol", "")


def _challenge(error: Unauthorized) -> Response[Problem]:
    """git asks its user, or the URL, for a password only after this header."""
    problem = Problem(f"git needs the token of a running job, or an admin token, as the password: {error}", error.code)
    return Response(problem, status_code=401, headers={"WWW-Authenticate": 'Basic realm="kici"', **_NOT_CACHED})
