"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click


def print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, two blanks between them, a rule under the header."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, ["-" * width for width in widths], *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def time_text(value: datetime | None, never: str = "never") -> str:
    return never if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
