"""`kici-admin source`: who may send webhooks."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from kici.admin.connection import Connection
from kici.admin.output import json_option, print_json, print_table
from kici.admin.secret_input import read_file, read_secret, secret_options
from kici.wire.api import Source, SourceAnswer, SourceCreate, SourceList

PATH = "/api/v1/admin/sources"


@click.group("source")
def group() -> None:
    """Senders of webhooks: GitHub and others."""


@group.group("add")
def add() -> None:
    """Let somebody deliver webhooks."""


@add.command("github")
@click.option("--name", required=True, help="What it is called here, and the last part of its webhook URL.")
@secret_options
@click.option("--clone-url", default="", help="Where to clone from, with {repo} in it, if not from GitHub's clone URL.")
@click.option(
    "--clone-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a token that may read private repositories.",
)
@click.option("--allowed-events", default="", metavar="A,B", help="Take only these events.")
@json_option
@click.pass_obj
def add_github(
    connection: Connection,
    name: str,
    secret_file: Path | None,
    from_env: str | None,
    from_stdin: bool,
    clone_url: str,
    clone_token_file: Path | None,
    allowed_events: str,
    as_json: bool,
) -> None:
    """A webhook of a GitHub repository or organisation. The secret is the one that is typed in there."""
    body = SourceCreate(
        name=name,
        provider="github",
        secret=read_secret(secret_file, from_env, from_stdin),
        clone_url=clone_url,
        clone_token=read_file(clone_token_file) if clone_token_file else "",
        allowed_events=_listed(allowed_events),
    )
    _added(connection.post(PATH, body, SourceAnswer).source, as_json)
    if not as_json:
        click.echo("At GitHub: Settings, Webhooks, Add webhook; content type application/json.", err=True)


@add.command("generic")
@click.option("--name", required=True, help="What it is called here, in workflows, and in its webhook URL.")
@click.option(
    "--verification",
    type=click.Choice(["hmac_sha256", "api_key"]),
    default="hmac_sha256",
    show_default=True,
    help="How a sender proves the secret: it signs the body, or shows it as a key.",
)
@secret_options
@click.option("--header-name", default="", help="Header of the signature (x-signature-256) or the key (authorization).")
@click.option("--event-type-header", default="", help="Header that names the event (x-event-type).")
@click.option("--event-type-path", default="", help="Path in the body that names the event, such as $.kind")
@click.option("--max-payload", type=click.IntRange(min=0), default=0, help="Largest body in bytes (10 MiB).")
@click.option("--allowed-events", default="", metavar="A,B", help="Take only these events.")
@json_option
@click.pass_obj
def add_generic(
    connection: Connection,
    name: str,
    verification: str,
    secret_file: Path | None,
    from_env: str | None,
    from_stdin: bool,
    header_name: str,
    event_type_header: str,
    event_type_path: str,
    max_payload: int,
    allowed_events: str,
    as_json: bool,
) -> None:
    """Anything that can sign a body with HMAC-SHA256, or send a key in a header."""
    body = SourceCreate(
        name=name,
        provider="generic",
        secret=read_secret(secret_file, from_env, from_stdin),
        verification_method=verification,
        header_name=header_name,
        event_type_header=event_type_header,
        event_type_path=event_type_path,
        max_payload_bytes=max_payload,
        allowed_events=_listed(allowed_events),
    )
    _added(connection.post(PATH, body, SourceAnswer).source, as_json)


@group.command("list")
@json_option
@click.pass_obj
def list_sources(connection: Connection, as_json: bool) -> None:
    """Show the sources and where each delivers."""
    found = connection.get(PATH, SourceList)
    if as_json:
        print_json(found)
    elif found.sources:
        print_table(
            ("NAME", "PROVIDER", "VERIFICATION", "ENABLED", "URL"),
            [
                (one.name, one.provider, one.verification_method, "yes" if one.enabled else "no", one.webhook_url)
                for one in found.sources
            ],
        )
    else:
        click.echo("No sources. `kici-admin source add github` adds one.", err=True)


@group.command("remove")
@click.argument("source")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(connection: Connection, source: str, yes: bool) -> None:
    """Refuse what SOURCE (a name, routing key or id) delivers from now on, and forget its secret."""
    if not yes and not click.confirm(f"Remove the source {source}?", err=True):
        click.echo("Cancelled.", err=True)
        return
    connection.delete(f"{PATH}/{quote(source, safe='')}")
    click.echo(f"Removed: {source}")


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _added(source: Source, as_json: bool) -> None:
    if as_json:
        print_json(source)
        return
    click.echo(f"Source added: {source.name} ({source.routing_key})")
    click.echo(f"Webhook URL:  {source.webhook_url}")
