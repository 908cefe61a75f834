"""Which addresses of package indexes may get a credential, and when two are the same. Stands on nothing of ours: the
SDK, the compiler and agents ask it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

MAX_CHARS = 2_000
_PORTS = {"https": 443, "http": 80}
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")


def problem(url: str) -> str:
    """Why this cannot be the address of a private index, to stand after it; empty = it can."""
    if len(url) > MAX_CHARS or not url.isascii() or not url.isprintable() or any(sign in url for sign in " \\\"'<>"):
        return "is no address"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no address"
    host = parts.hostname or ""
    authority = parts.netloc.rpartition("@")[2]
    named = authority.rpartition(":")[0] if port is not None or authority.endswith(":") else authority
    if parts.scheme not in _PORTS or not _HOST.fullmatch(named):
        return "is no address: write https://host/path"
    if "@" in parts.netloc:
        return "holds a user or password: leave it out, and name the secret that holds it"
    if parts.query or parts.fragment:
        return "has a query or fragment: leave it out"
    if parts.scheme == "http" and not _is_local(host):
        return "is not encrypted, and would show the token to everybody on the way: write https://"
    return ""


def same(one: str, other: str) -> bool:
    """Whether two addresses name the same index: a slash at the end and the usual port say nothing."""
    try:
        return _normal(urlsplit(one)) == _normal(urlsplit(other))
    except ValueError:
        return False


def _normal(parts: SplitResult) -> tuple[str, str, int | None, str]:
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme), parts.path.rstrip("/")


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".local"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
