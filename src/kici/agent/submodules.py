"""What a commit says about its submodules, believed only as far as it can do no harm.

Names are not used for anything: a submodule's repository lies in its own directory. A path counts only where the commit
has a submodule there; an address is relative, or `http(s)://`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from kici.agent.errors import PreparationFailed
from kici.agent.git import Git, GitFailed, Remote

MAX = 500
MAX_GITMODULES_BYTES = 1_000_000
_GIT_NAMES = re.compile(r"\.git|git~\d+", re.IGNORECASE)


class Submodule(Struct, frozen=True):
    path: str
    sha: str
    url: str


async def found(git: Git, source: Remote, sha: str, sparse: Sequence[str]) -> list[Submodule]:
    """Those of a commit, of the directories in `sparse` if it names any. Raises `PreparationFailed` with the name of
    one that cannot be used."""
    links = await _links(git, sha)
    if sparse:
        links = {path: one for path, one in links.items() if any(f"{path}/".startswith(f"{top}/") for top in sparse)}
    if not links:
        return []
    if len(links) > MAX:
        raise PreparationFailed(f"the commit has {len(links):,} submodules; the limit is {MAX}")
    urls = await _urls(git, sha)
    modules = []
    for path, commit in links.items():
        if path not in urls:
            raise PreparationFailed(f"submodule {path!r} has no url in .gitmodules: add it, or remove the submodule")
        name, url = urls[path]
        _check_path(name, path)
        modules.append(Submodule(path, commit, _resolved(name, url, source)))
    return modules


def check_place(src: Path, path: str) -> None:
    """The directory that git has made for it: empty, and reached through no link."""
    place = src
    for part in path.split("/"):
        place /= part
        if place.is_symlink() or not place.is_dir():
            raise PreparationFailed(f"submodule {path!r} lies behind something that is no directory")
    if any(place.iterdir()):
        raise PreparationFailed(f"submodule {path!r} lies in a directory that has files")


async def _links(git: Git, sha: str) -> dict[str, str]:
    listing = await git.run("ls-tree", "-r", "-z", "--full-tree", sha)
    links = {}
    for line in listing.split(b"\0"):
        if line.startswith(b"160000 "):
            about, _, path = line.partition(b"\t")
            links[path.decode(errors="surrogateescape")] = about.decode().split()[2]
    return links


async def _urls(git: Git, sha: str) -> dict[str, tuple[str, str]]:
    """Path → name and url, as `.gitmodules` of the commit has them."""
    try:
        size = int(await git.run("cat-file", "-s", f"{sha}:.gitmodules"))
    except GitFailed:
        return {}
    if size > MAX_GITMODULES_BYTES:
        raise PreparationFailed(f".gitmodules has {size:,} bytes; the limit is {MAX_GITMODULES_BYTES:,}")
    try:
        listing = await git.run("config", "--no-includes", "--blob", f"{sha}:.gitmodules", "--list", "--null")
    except GitFailed as error:
        raise PreparationFailed(f".gitmodules cannot be read: {error}") from error
    values: dict[str, dict[str, str]] = {}
    for entry in listing.decode(errors="surrogateescape").split("\0"):
        key, _, value = entry.partition("\n")
        section, _, rest = key.partition(".")
        name, _, variable = rest.rpartition(".")
        if section == "submodule" and variable in ("path", "url"):
            values.setdefault(name, {})[variable] = value
    return {one["path"].rstrip("/"): (name, one["url"]) for name, one in values.items() if {"path", "url"} <= set(one)}


def _check_path(name: str, path: str) -> None:
    parts = path.split("/")
    if path.startswith(("/", "-")) or "\\" in path or not path.isprintable() or not all(parts):
        raise PreparationFailed(f"submodule {name!r} has the path {path!r}, which is refused")
    for part in parts:
        # macOS ignores these characters in names, so that `.g\u200cit` would be `.git` there.
        plain = "".join(character for character in part if unicodedata.category(character) != "Cf")
        if plain in (".", "..") or _GIT_NAMES.fullmatch(plain.rstrip(". ")):
            raise PreparationFailed(f"submodule {name!r} has the path {path!r}, which is refused")


def _resolved(name: str, url: str, source: Remote) -> str:
    if url.startswith(("./", "../")):
        url = _relative(name, url, source)
    try:
        return Remote(url, "").url
    except PreparationFailed:
        raise PreparationFailed(
            f"submodule {name!r} has the url {url[:200]!r}: only http://, https:// and relative ones are fetched,"
            " without a user or password in them; ssh:// and git@ ones can mostly be written as https://"
        ) from None


def _relative(name: str, url: str, source: Remote) -> str:
    """As git does it: below the address of the repository, which counts as a directory."""
    parts = urlsplit(source.url)
    way = parts.path.rstrip("/").split("/")
    for part in url.split("/"):
        if part == "..":
            if len(way) <= 1:
                raise PreparationFailed(f"submodule {name!r} has the url {url[:200]!r}, which leaves {source.origin}")
            way.pop()
        elif part not in (".", ""):
            way.append(part)
    return urlunsplit((parts.scheme, parts.netloc, "/".join(way), "", ""))
