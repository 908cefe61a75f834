"""`kici login` and `kici logout`."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kici.wire.api import Whoami

EXPIRES_SOON = timedelta(days=7)


@click.command()
@click.option("--url", default="", help="Of the orchestrator, like https://ci.example.com; the one known so far.")
@click.option("--token", default="", help="Others on this machine may see it: leave it out to be asked.")
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input.")
@click.option("--json", "as_json", is_flag=True, help="Say who this is as JSON.")
def login(url: str, token: str, token_stdin: bool, as_json: bool) -> None:
    """Remember an orchestrator and a token for `kici runs` and the others.

    The orchestrator is asked whether it takes the token; only then both are written to `config` below KICI_CONFIG_DIR
    or ~/.kici, readable by you alone. `kici-admin` uses them too. The variables KICI_URL and KICI_TOKEN win over it.
    """
    from kici.cli import config
    from kici.cli.client import Client, ClientError
    from kici.wire.api import Whoami

    if token and token_stdin:
        raise click.UsageError("--token and --token-stdin exclude each other")
    url = (url or config.remembered().get("url", "")).rstrip("/")
    if not url:
        raise click.UsageError("--url: say which orchestrator, like --url https://ci.example.com")
    token = (token or _asked(from_stdin=token_stdin)).strip()
    if not token:
        raise ClientError("no token was given: ask whoever runs the orchestrator for one")
    with Client(url, token) as client:
        who = client.get("/whoami", Whoami)
    path = config.remember(url=url, token=token)
    if as_json:
        expires = who.expires_at.isoformat() if who.expires_at else None
        click.echo(
            json.dumps({"url": url, "label": who.label, "role": who.role, "expiresAt": expires, "config": str(path)})
        )
    else:
        click.echo(f"logged in to {url} as {who.label} ({who.role}); remembered in {path}")
    if soon := expiry(who):
        click.echo(f"warning: {soon}", err=True)
    for name in ("KICI_URL", "KICI_TOKEN"):
        if os.environ.get(name):
            click.echo(f"warning: {name} is set and wins over what was remembered: unset it", err=True)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Say what was removed as JSON.")
def logout(as_json: bool) -> None:
    """Forget the orchestrator and the token.

    The token itself stays valid until it expires or is revoked.
    """
    from kici.cli import config

    path = config.file()
    forgotten = config.forget()
    if as_json:
        click.echo(json.dumps({"config": str(path), "forgotten": forgotten}))
    else:
        click.echo(f"removed {path}" if forgotten else "nothing was remembered")


def expiry(who: Whoami) -> str:
    """A sentence if the token ends soon, else empty."""
    if who.expires_at is None:
        return ""
    left = who.expires_at - datetime.now(UTC)
    days = max(0, left.days)
    return f"the token expires in {days} {'day' if days == 1 else 'days'}" if left < EXPIRES_SOON else ""


def _asked(*, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.read()
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked for the token here: write --token-stdin")
    return str(click.prompt("Token", hide_input=True, err=True))
