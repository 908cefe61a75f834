"""`/api/v1/agent-tokens`: what lets agents connect."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from asyncpg import Pool, Record
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody

from kici.orchestrator.errors import Invalid, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.tokens import create_agent
from kici.orchestrator.store import database, notify, tokens
from kici.wire.api import AgentToken, AgentTokenAnswer, AgentTokenCreate, AgentTokenList

PATH: Final = "/api/v1/agent-tokens"

_LABEL = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9:._/-]{0,127}\Z")


class Notifies(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


def routes(access: Access, pool: Pool[Record], notifier: Notifies) -> list[HTTPRouteHandler]:
    guards = [access.guard("token.manage")]

    @post(PATH, guards=guards, summary="Make a token for an agent")
    async def create_agent_token(data: JSONBody[AgentTokenCreate], request: Request[Any, Any, Any]) -> AgentTokenAnswer:
        """The token is in this answer and nowhere else: only its SHA-256 is stored."""
        for label in data.labels or ():
            if not _LABEL.match(label):
                raise Invalid(f"labels: {label!r} is no label: letters, digits and : . _ / - are")
        async with database.transaction(pool) as db:
            made = await create_agent(db, labels=data.labels, created_by=request.user.actor)
        return AgentTokenAnswer(made.id, made.token)

    @get(PATH, guards=guards, summary="List the tokens of agents")
    async def list_agent_tokens() -> AgentTokenList:
        async with database.transaction(pool) as db:
            return AgentTokenList(
                [
                    AgentToken(
                        id=one.id,
                        token_prefix=one.token_prefix,
                        labels=one.labels,
                        agent_type=one.agent_type,
                        created_at=one.created_at,
                        last_seen_at=one.last_seen_at,
                        expires_at=one.expires_at,
                    )
                    for one in await tokens.list_agent(db)
                ]
            )

    @delete(PATH + "/{token_id:str}", guards=guards, summary="Revoke a token of an agent")
    async def revoke_agent_token(token_id: FromPath[str]) -> None:
        """Its agents lose their sockets within a second, and their jobs."""
        async with database.transaction(pool) as db:
            if not await tokens.revoke_agent(db, _uuid(token_id)):
                raise NotFound(f"there is no valid agent token with the id {token_id}")
        notifier.send(notify.TOKENS, token_id)

    return [create_agent_token, list_agent_tokens, revoke_agent_token]


def _uuid(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        raise Invalid(f"{text!r} is no token id: `kici-admin agent list` shows them")
    return text
