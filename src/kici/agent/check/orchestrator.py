"""Hops at the orchestrator: token, labels, id, protocol, clock, object store; and git, which goes its own way there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import httpx
import msgspec

from kici.agent import ca_bundle, facts
from kici.agent.check.hop import Finding, Hop, Status, fail, ok, warn
from kici.agent.check.known import Known
from kici.agent.check.network import asked
from kici.agent.git import Git, GitFailed, Remote
from kici.wire import version
from kici.wire.agent_api import AgentCheck
from kici.wire.api import Problem

SKEW_S = 2.0
"""From here on the orchestrator warns too."""
_ASKED = ("could not read Username", "Authentication failed")
"""What git says when it has reached a server that wants to know who asks."""


async def token(known: Known) -> Finding:
    wanted = known.settings
    if not wanted.agent_token:
        return fail("neither KICI_AGENT_TOKEN nor KICI_AGENT_TOKEN_FILE is set", _REGISTER)
    sent = time.time()
    answer = await asked(
        f"{wanted.http_url}/api/v1/agent/check",
        token=wanted.agent_token,
        params={"agentId": known.agent_id, "label": [*wanted.labels, *facts.machine_labels()]},
    )
    known.asked_at = (sent + time.time()) / 2
    if answer.status_code == 404:
        return Finding(Status.SKIPPED, "this orchestrator cannot be asked, it is older than this agent")
    if answer.status_code != 200:
        return fail(_said(answer), _REGISTER if answer.status_code == 401 else "see the orchestrator's log")
    known.answer = msgspec.json.decode(answer.content, type=AgentCheck)
    granted = "any" if known.answer.labels is None else ", ".join(known.answer.labels) or "none"
    return ok(f"{known.answer.token_prefix}… is valid, and grants labels: {granted}")


async def labels(known: Known) -> Finding:
    refused = known.answer.refused_labels
    if refused:
        way_out = f"take them out of KICI_LABELS, or register a token: kici-admin agent register --labels {refused[0]}"
        return fail(f"the token does not grant {', '.join(refused)}", way_out)
    return ok(", ".join((*known.settings.labels, *facts.machine_labels())))


async def agent_id(known: Known) -> Finding:
    match known.answer.agent_id:
        case "foreign":
            told = f"{known.agent_id} is connected with another token"
            return fail(told, "set another KICI_AGENT_ID, or use that agent's token")
        case "connected":
            return ok(f"{known.agent_id} is connected now, and was left alone")
        case _:
            return ok("it is free")


async def protocol(known: Known) -> Finding:
    theirs = known.answer
    agreed = version.agree(theirs.protocol_min, theirs.protocol_max)
    if agreed is None:
        return fail(
            f"this agent speaks {version.PROTOCOL_MIN} to {version.PROTOCOL_MAX}, the orchestrator"
            f" {theirs.protocol_min} to {theirs.protocol_max}",
            "upgrade the older of the two",
        )
    return ok(f"{agreed}, with version {theirs.version}")


async def clock(known: Known) -> Finding:
    ahead_s = known.asked_at - known.answer.clock.timestamp()
    told = f"this machine's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the database's"
    if abs(ahead_s) > SKEW_S:
        return warn(f"{told}, where it is {datetime.fromtimestamp(known.answer.clock.timestamp(), UTC)}", "set NTP up")
    return ok(told)


async def storage(known: Known) -> Finding:
    if known.answer.storage_problem:
        return fail(f"artifacts and caches: {known.answer.storage_problem}", "see the orchestrator's storage settings")
    return ok("artifacts and caches can be kept, through the orchestrator")


async def git(known: Known) -> Finding:
    url = f"{known.settings.http_url}/git/kici-agent-check"
    if known.settings.ca_bundle:
        ca_bundle.hand_over(known.settings.ca_bundle, known.space)
    try:
        await Git(known.space).run("ls-remote", url, remote=Remote(url, ""), timeout_s=25)
    except GitFailed as error:
        if any(sign in str(error) for sign in _ASKED):
            return ok("git reaches the orchestrator, which asks for a job's token")
        return fail(str(error), "look at KICI_CA_BUNDLE and the proxies: git uses the same")
    return ok("git reaches the orchestrator")


_REGISTER = "make one: kici-admin agent register"
HOPS: Sequence[Hop[Known]] = (
    Hop("token", token, 20, ("http", "websocket"), "see the orchestrator's log"),
    Hop("labels", labels, 5, ("token",)),
    Hop("id there", agent_id, 5, ("token",)),
    Hop("protocol", protocol, 5, ("token",)),
    Hop("clock", clock, 5, ("token",)),
    Hop("storage", storage, 5, ("token",)),
    Hop("git there", git, 30, ("git", "job directory", "http"), "look at KICI_CA_BUNDLE and the proxies"),
)


def _said(answer: httpx.Response) -> str:
    try:
        return msgspec.json.decode(answer.content, type=Problem).error
    except msgspec.DecodeError:
        return f"the orchestrator answers {answer.status_code}"
