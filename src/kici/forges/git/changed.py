"""Which files differ between two commits: asked of git, never of a webhook, whose lists are cut or empty."""

from __future__ import annotations

from pathlib import Path

from kici.engine.changed import MAX_FILES
from kici.forges.git import command
from kici.forges.git.errors import CommitMissing, classify

_MAX_BYTES = 4 * 1024 * 1024


async def changed_files(git_dir: Path, base: str, head: str) -> tuple[str, ...] | None:
    """Paths that differ between the two trees; both names of a renamed file. None: too many to say."""
    done = await command.run(
        ["--git-dir", str(git_dir), "diff-tree", "-r", "--name-only", "-z", "--no-renames", base, head, "--"],
        max_output=_MAX_BYTES,
    )
    if done.truncated:
        return None
    if b"bad object" in done.stderr:
        raise CommitMissing(f"the repository does not have both {base} and {head}")
    if done.code:
        raise classify(f"comparing {base} with {head}", done.stderr)
    names = tuple(name.decode(errors="replace") for name in done.stdout.split(b"\0") if name)
    return names if len(names) <= MAX_FILES else None


async def merge_base(git_dir: Path, base: str, head: str) -> str | None:
    """The commit from which the two went apart; None if their histories have nothing in common."""
    done = await command.run(["--git-dir", str(git_dir), "merge-base", base, head])
    if done.code == 1:
        return None
    if done.code:
        raise CommitMissing(f"the repository does not have both {base} and {head}")
    return done.stdout.decode().strip()
