"""From the name of a branch or tag to a commit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kici.forges.git import command
from kici.forges.git.errors import classify
from kici.forges.git.remote import check_ref, is_sha

_HEADS = "refs/heads/"
_TAGS = "refs/tags/"


class Resolved(Struct, frozen=True):
    sha: str
    branch: str = ""
    tag: str = ""
    default_branch: str = ""


class Refs(Struct, frozen=True):
    """What a repository says about the refs that it was asked for."""

    commits: Mapping[str, str]
    """Full name, or `HEAD` → commit; of an annotated tag the commit that it stands for."""
    default_branch: str = ""
    """Empty: the repository does not say."""


def wanted(ref: str) -> list[str]:
    """Full names of what `ref` can mean. Raises `BadRemote` for what is no ref."""
    if not ref or is_sha(ref):
        return []
    check_ref(ref)
    return [ref] if ref.startswith("refs/") else [_HEADS + ref, _TAGS + ref]


def choose(ref: str, refs: Refs) -> Resolved | None:
    """A branch comes before a tag of the same name; nothing asked for is the default branch."""
    if is_sha(ref):
        return Resolved(ref)
    if not ref:
        head = refs.commits.get("HEAD")
        return Resolved(head, refs.default_branch, "", refs.default_branch) if head else None
    for name in wanted(ref):
        if sha := refs.commits.get(name):
            branch = name.removeprefix(_HEADS) if name.startswith(_HEADS) else ""
            tag = name.removeprefix(_TAGS) if name.startswith(_TAGS) else ""
            return Resolved(sha, branch, tag, refs.default_branch)
    return None


async def of_remote(url: str, ref: str, config: Mapping[str, str]) -> Refs:
    asked = [pattern for name in wanted(ref) for pattern in (name, name + "^{}")]
    done = await command.run(["ls-remote", "--symref", "--", url, "HEAD", *asked], config=config)
    if done.code:
        raise classify(f"asking for {ref or 'the default branch'}", done.stderr)
    commits, default = {}, ""
    for line in done.stdout.decode(errors="replace").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: ") and name == "HEAD":
            default = value.removeprefix("ref: ").removeprefix(_HEADS)
        elif name.endswith("^{}"):
            commits[name.removesuffix("^{}")] = value
        else:
            commits.setdefault(name, value)
    return Refs(commits, default)


async def of_repository(git_dir: Path, ref: str) -> Refs:
    head = await command.run(["--git-dir", str(git_dir), "symbolic-ref", "HEAD"])
    default = head.stdout.decode().strip().removeprefix(_HEADS)
    done = await command.run(
        [
            "--git-dir",
            str(git_dir),
            "for-each-ref",
            "--format=%(refname) %(objectname) %(*objectname)",
            _HEADS + default,
            *wanted(ref),
        ]
    )
    if head.code or done.code:
        raise classify(f"asking for {ref or 'the default branch'}", head.stderr + done.stderr)
    commits = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        name, value, *peeled = line.split()
        commits[name] = peeled[0] if peeled else value
    if head_commit := commits.get(_HEADS + default):
        commits["HEAD"] = head_commit
    return Refs(commits, default)
