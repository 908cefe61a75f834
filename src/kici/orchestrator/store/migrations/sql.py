"""Runs the SQL files of the revisions: the one way SQL gets into a migration."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

VERSIONS = Path(__file__).parent / "versions"


def run_file(name: str) -> None:
    """Run all statements of `versions/<name>` in the step's transaction."""
    from alembic import op
    from sqlalchemy import text

    op.execute(text(escaped((VERSIONS / name).read_text())))


def escaped(sql: str) -> str:
    """For `sqlalchemy.text`, so that the text reaches the server as it stands in the file.

    SQLAlchemy would take `:word` for a bind parameter, inside a JSON literal, too. It doubles `%` by itself.
    """
    return sql.replace(":", "\\:")


def content_hash(revision: str) -> str:
    """Of both files of a revision, so that an edit after its release is seen."""
    digest = sha256()
    for path in sorted(VERSIONS.glob(f"{revision}_*.sql")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
