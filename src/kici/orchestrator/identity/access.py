"""Turns a bearer token into a principal, and says no to everything else."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import structlog
from asyncpg import Pool, Record
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler
from litestar.types import Guard
from msgspec import Struct

from kici.orchestrator.errors import Forbidden, Unauthorized
from kici.orchestrator.identity.roles import PERMISSIONS, may
from kici.orchestrator.identity.tokens import JOB_PREFIX, digest
from kici.orchestrator.store import tokens
from kici.orchestrator.store.database import connection, transaction

log = structlog.get_logger(__name__)

TOUCH_S = 60.0
"""A token's last use is noted at most this often."""


class Principal(Struct, frozen=True):
    """Who makes a request."""

    kind: str
    """`admin_token`"""
    id: str
    role: str
    label: str = ""
    expires_at: datetime | None = None

    @property
    def actor(self) -> str:
        """As it stands in `triggered_by` and `cancelled_by`."""
        return f"{self.kind}:{self.label or self.id}"


class AgentPrincipal(Struct, frozen=True):
    """An agent with a valid token."""

    token_id: str
    token_prefix: str
    labels: tuple[str, ...] | None
    """What its token lets it offer beside the automatic labels; None = any."""


class JobPrincipal(Struct, frozen=True):
    """One attempt of one job, as long as it runs."""

    job_id: str
    run_id: str
    attempt: int
    session_id: str | None
    repository: str
    workflow: str
    permissions: dict[str, str] | None
    """Of its workflow; None = everything."""


class Access:
    """Asks the database each time: a revoked token ends at once, on every coordinator."""

    def __init__(self, pool: Pool[Record]) -> None:
        self._pool = pool
        self._touched: dict[str, float] = {}

    def guard(self, permission: str) -> Guard:
        """A Litestar guard: lets through who has the permission, and puts the `Principal` into `request.user`."""
        if permission not in PERMISSIONS:
            raise ValueError(f"there is no permission {permission!r}")

        async def check(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
            principal = await self.principal(bearer(connection))
            if not may(principal.role, permission):
                log.warning("refused", permission=permission, role=principal.role, token=principal.id)
                raise Forbidden(f'Role "{principal.role}" does not have permission "{permission}"')
            connection.scope["user"] = connection.scope["auth"] = principal

        return check

    async def principal(self, token: str) -> Principal:
        """Whose admin token this is. Raises `Unauthorized`."""
        async with transaction(self._pool) as db:
            found = await tokens.find_admin(db, digest(token))
            if found is not None and self._due(found.id):
                await tokens.touch_admin(db, found.id)
            why = "" if found is not None else await tokens.why_refused(db, digest(token))
        if found is None:
            raise Unauthorized(f"Invalid or expired token{f': {why}' if why else ''}")
        if found.routing_key is not None:
            raise Forbidden(
                "Access denied: this route requires an unscoped admin token"
                " (the calling token is restricted to a single routing key)"
            )
        return Principal("admin_token", found.id, found.role, found.label, found.expires_at)

    async def agent(self, token: str) -> AgentPrincipal:
        """Whose agent token this is. Raises `Unauthorized`."""
        async with transaction(self._pool) as db:
            found = await tokens.find_agent(db, digest(token))
            if found is None:
                raise Unauthorized("the agent token is unknown, revoked or expired: make a new one")
            if self._due(found.id):  # thousands of agents may share a token, and come back together
                await tokens.touch_agent(db, found.id)
        return AgentPrincipal(found.id, found.token_prefix, None if found.labels is None else tuple(found.labels))

    async def job(self, request_token: str) -> JobPrincipal:
        """Which attempt this job token stands for. Raises `Unauthorized`, also once the attempt has ended."""
        found = None
        if request_token.startswith(JOB_PREFIX):
            async with connection(self._pool) as db:
                found = await tokens.find_job(db, digest(request_token))
        if found is None:
            raise Unauthorized("the job token is not valid, or its job has ended")
        return JobPrincipal(
            found.job_id,
            found.run_id,
            found.attempt,
            found.session_id,
            found.repository,
            found.workflow,
            found.permissions,
        )

    def _due(self, token_id: str) -> bool:
        now = time.monotonic()
        if now - self._touched.get(token_id, float("-inf")) < TOUCH_S:
            return False
        self._touched[token_id] = now
        return True


def bearer(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """The token of the `Authorization` header. Raises `Unauthorized`."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("Missing authorization")
    return token.strip()
