"""`kici endpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kici.engine.lockfile import LockFile, Trigger

_OF_THE_ORCHESTRATOR = frozenset({"manual", "schedule", "kici_event", "workflow_complete", "job_complete", "lifecycle"})
_WEBHOOKS = frozenset({"generic_webhook", "webhook"})


@click.command()
@click.option("--url", default="", help="Of the orchestrator; the one of `kici login` if left out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def endpoints(url: str, as_json: bool) -> None:
    """Say where the events come in that the workflows of .kici/kici.lock.json wait for.

    Grouped: what the forge has to deliver, what other senders deliver, and what needs no webhook.
    """
    import json

    from kici.cli import repository
    from kici.engine import lockfile
    from kici.errors import KiciError

    path = repository.root() / lockfile.PATH
    try:
        lock = lockfile.decode(path.read_bytes())
    except FileNotFoundError:
        raise KiciError(f"{lockfile.PATH} is not there: run `kici compile`") from None
    base = (url or _known_url()).rstrip("/") or "https://ORCHESTRATOR"
    found = _endpoints(lock, base)
    if as_json:
        click.echo(json.dumps({"endpoints": found}, indent=2))
        return
    for group, title in (("git", "From the forge"), ("webhook", "From other senders"), ("none", "Without a webhook")):
        rows = [one for one in found if one["group"] == group]
        if rows:
            click.echo(title)
        for address in dict.fromkeys(str(one["url"]) for one in rows):
            if address:
                click.echo(f"  POST {address}")
            for one in rows:
                if one["url"] == address:
                    click.echo(f"    {one['workflow']}: {one['trigger']}{one['detail']}")
    if any(one["group"] != "none" for one in found):
        click.echo("\nSOURCE is the name that `kici-admin source add` was given; it checks the signature.", err=True)


def _endpoints(lock: LockFile, base: str) -> list[dict[str, str]]:
    found = []
    for workflow in lock.workflows:
        for trigger in workflow.triggers:
            kind = str(trigger.__struct_config__.tag)
            group = "none" if kind in _OF_THE_ORCHESTRATOR else "webhook" if kind in _WEBHOOKS else "git"
            address = {"none": "", "webhook": f"{base}/webhook/{_source(trigger)}"}.get(group, f"{base}/webhook/SOURCE")
            detail = f" ({', '.join(_events(trigger))})" if _events(trigger) else ""
            found.append({"workflow": workflow.name, "trigger": kind, "detail": detail, "group": group, "url": address})
    return found


def _source(trigger: Trigger) -> str:
    return str(getattr(trigger, "source", "") or "SOURCE")


def _events(trigger: Trigger) -> tuple[str, ...]:
    events = getattr(trigger, "events", ())
    return tuple(str(one) for one in events) if isinstance(events, tuple) else ()


def _known_url() -> str:
    import os

    from kici.cli import config

    return os.environ.get("KICI_URL", "") or config.remembered().get("url", "")
