"""Where a repository is, and how its credentials travel: in the environment, never in arguments, URLs or messages."""

from __future__ import annotations

import base64
import re
from urllib.parse import urlsplit

from msgspec import Struct

from kici.forges.git.errors import BadRemote

LOCAL_PREFIX = "/git/"
"""A clone URL that starts so names a repository that the orchestrator itself serves."""

_SHA = re.compile(r"[0-9a-f]{40}")
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)")


class Remote(Struct, frozen=True):
    url: str
    """`https://…` or `http://…`, or `/git/<name>`: a repository of our own."""
    username: str = ""
    password: str = ""

    @property
    def local_name(self) -> str | None:
        name = self.url.removeprefix(LOCAL_PREFIX)
        return None if name == self.url else name

    def __repr__(self) -> str:
        return f"Remote(url={self.url!r})"


def check_url(url: str) -> None:
    """Raise `BadRemote` for everything that is not a plain HTTP(S) URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadRemote("the clone URL cannot be read: write https://host/owner/name") from error
    if parts.scheme not in ("http", "https") or not host:
        raise BadRemote(f"the clone URL has the scheme {parts.scheme!r}: repositories are read over https or http")
    if parts.username is not None or parts.password is not None:
        raise BadRemote("the clone URL holds a user name or password: give the source a clone token instead")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise BadRemote("the clone URL holds characters that no URL has")


def credentials(remote: Remote) -> dict[str, str]:
    """Git configuration that sends the credentials to the remote's own origin and to no other."""
    if not remote.password:
        return {}
    parts = urlsplit(remote.url)
    pair = f"{remote.username or 'x-access-token'}:{remote.password}".encode()
    header = f"Authorization: Basic {base64.b64encode(pair).decode()}"
    return {f"http.{parts.scheme}://{parts.netloc}/.extraHeader": header}


def is_sha(text: str) -> bool:
    """A full commit id. Abbreviated ones are not ids: servers refuse them."""
    return bool(_SHA.fullmatch(text))


def check_sha(sha: str) -> None:
    if not is_sha(sha):
        raise BadRemote(f"{sha[:80]!r} is not a commit id of 40 hex digits")


def check_ref(ref: str) -> None:
    """Raise `BadRemote` for what cannot be a branch, a tag or a full ref."""
    if not 0 < len(ref) <= 500 or ref[0] in "-/." or ref[-1] in "/." or ref == "@" or _REF_FORBIDDEN.search(ref):
        raise BadRemote(f"{ref[:80]!r} cannot be the name of a branch or tag")
