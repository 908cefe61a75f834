"""Tables, and text that the terminal's encoding may lack."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime

import click


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, two blanks between them, a rule under the header."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, ["-" * width for width in widths], *rows):
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def time_of(value: datetime | None) -> str:
    return "-" if value is None else f"{value.astimezone():%Y-%m-%d %H:%M:%S}"


def wants_colour() -> bool:
    """On a terminal that knows them, unless NO_COLOR says no."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def echo(text: str) -> None:
    """A character that the terminal's encoding lacks comes out as `?`."""
    if not speaks_unicode():
        encoding = sys.stdout.encoding or "ascii"
        text = text.encode(encoding, "replace").decode(encoding)
    click.echo(text)
