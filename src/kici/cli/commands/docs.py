"""`kici docs`: the pages that come with kici, so that they fit this version and need no network."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("topic", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print the list of topics, or the page, as JSON.")
def docs(topic: str, as_json: bool) -> None:
    """List the topics of the documentation, or print the page about TOPIC."""
    import json

    from kici.errors import KiciError
    from kici.nearest import nearest

    pages = {path.stem: path.read_text("utf-8") for path in sorted(_directory().glob("*.md"))}
    if not topic:
        titles = {name: _title(text) for name, text in pages.items()}
        if as_json:
            click.echo(json.dumps({"topics": titles}, indent=2))
            return
        width = max(map(len, titles))
        for name, title in titles.items():
            click.echo(f"{name:<{width}}  {title}")
        return
    if topic not in pages:
        raise KiciError(f"there is no page {topic!r}{nearest(topic, pages)}; there are {', '.join(pages)}")
    text = pages[topic]
    click.echo(json.dumps({"topic": topic, "title": _title(text), "text": text}) if as_json else text.rstrip("\n"))


def _title(text: str) -> str:
    return text.split("\n", 1)[0].lstrip("# ").strip()


def _directory() -> Path:
    """Inside the installed package, or in a checkout of kici."""
    from kici.errors import KiciError

    package = Path(__file__).parents[2]
    for directory in (package / "docs", package.parents[1] / "docs" / "user"):
        if directory.is_dir():
            return directory
    raise KiciError("this kici was installed without its documentation")
