"""Where the protocol that one feature asks for meets the class of another. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from kici.forges.git.remote import LOCAL_PREFIX
from kici.orchestrator.dispatch.contract import Login
from kici.orchestrator.errors import Unauthorized
from kici.orchestrator.identity.access import Access
from kici.orchestrator.intake.sources import Sources


class GrantedLabels(Struct, frozen=True):
    """What an agent's token says."""

    id: str
    labels: Collection[str] | None


class AgentTokens:
    """`identity` for the agents' sockets."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def agent(self, token: str) -> GrantedLabels | None:
        try:
            found = await self._access.agent(token)
        except Unauthorized:
            return None
        return GrantedLabels(found.token_id, found.labels)


class CloneLogins:
    """The sources' clone tokens for dispatch. A repository of our own is fetched with the job's token instead."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def __call__(self, routing_key: str, clone_url: str) -> Login:
        if clone_url.startswith(LOCAL_PREFIX):
            return Login()
        known = self._sources.by_routing_key(routing_key)
        if known is None:
            await self._sources.load()
            known = self._sources.by_routing_key(routing_key)
        if known is None or not known.clone_token:
            return Login()
        return Login("x-access-token", known.clone_token)
