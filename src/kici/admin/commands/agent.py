"""`kici-admin agent`: tokens that let agents connect."""

from __future__ import annotations

from urllib.parse import quote

import click

from kici.admin.connection import Connection
from kici.admin.output import json_option, print_json, print_table, time_text
from kici.wire.api import Agent, AgentList, AgentTokenAnswer, AgentTokenCreate, AgentTokenList

PATH = "/api/v1/agent-tokens"
CONNECTED_PATH = "/api/v1/admin/agents"


@click.group("agent")
def group() -> None:
    """Tokens that let agents connect, and those that are."""


@group.command("register")
@click.option("--labels", metavar="A,B", help="Labels that an agent with this token may offer; without, any.")
@json_option
@click.pass_obj
def register(connection: Connection, labels: str | None, as_json: bool) -> None:
    """Make a token for an agent. It is shown once."""
    listed = None if labels is None else [label.strip() for label in labels.split(",") if label.strip()]
    made = connection.post(PATH, AgentTokenCreate(labels=listed), AgentTokenAnswer)
    if as_json:
        print_json(made)
        return
    click.echo(f"Token ID: {made.id}")
    click.echo(f"Token:    {made.token}")
    click.echo("It is not shown again: give it to the agent in a file (KICI_AGENT_TOKEN_FILE).", err=True)


@group.command("list")
@json_option
@click.pass_obj
def list_tokens(connection: Connection, as_json: bool) -> None:
    """Show the tokens that are good."""
    found = connection.get(PATH, AgentTokenList)
    if as_json:
        print_json(found)
    elif found.tokens:
        print_table(
            ("ID", "PREFIX", "LABELS", "TYPE", "CREATED", "LAST SEEN", "EXPIRES"),
            [
                (
                    one.id,
                    one.token_prefix,
                    "any" if one.labels is None else ",".join(one.labels) or "none",
                    one.agent_type,
                    time_text(one.created_at),
                    time_text(one.last_seen_at),
                    time_text(one.expires_at),
                )
                for one in found.tokens
            ],
        )
    else:
        click.echo("No tokens. `kici-admin agent register` makes one.", err=True)


@group.command("connected")
@json_option
@click.pass_obj
def connected(connection: Connection, as_json: bool) -> None:
    """Show the agents that are connected, and what keeps their jobs apart."""
    found = connection.get(CONNECTED_PATH, AgentList)
    if as_json:
        print_json(found)
    elif found.agents:
        print_table(
            ("AGENT", "STATUS", "JOBS", "VERSION", "SANDBOX", "LABELS"),
            [
                (
                    one.agent_id,
                    one.status,
                    f"{len(one.running_jobs)}/{one.slots}",
                    one.version,
                    _sandbox(one),
                    ",".join(one.labels),
                )
                for one in found.agents
            ],
        )
        for one in found.agents:
            if missing := _fact(one, "sandbox_fallback"):
                click.echo(f"{one.agent_id}: jobs are less protected than they could be: {missing}", err=True)
    else:
        click.echo("No agent is connected.", err=True)


@group.command("revoke")
@click.argument("token_id")
@click.pass_obj
def revoke(connection: Connection, token_id: str) -> None:
    """Refuse agents that show this token from now on."""
    connection.delete(f"{PATH}/{quote(token_id, safe='')}")
    click.echo(f"Revoked: {token_id}")


def _sandbox(agent: Agent) -> str:
    name, profile = _fact(agent, "sandbox"), _fact(agent, "sandbox_profile")
    return (name if profile in ("", "steps") else f"{name} ({profile})") or "?"


def _fact(agent: Agent, name: str) -> str:
    """What the agent said of itself: anything, so nothing that a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in str(agent.facts.get(name, "")))[:500]
