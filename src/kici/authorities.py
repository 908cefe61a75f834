"""What an HTTP client believes of TLS. By itself each reads all certificate authorities: 40 ms of processor time."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from kici.errors import KiciError

if TYPE_CHECKING:
    import ssl


class AuthoritiesUnreadable(KiciError):
    code = "authorities_unreadable"
    status = 422


def tls_context(url: str) -> ssl.SSLContext:
    """Of a client that asks this URL and those below it, without following redirects.

    That of an `https` URL knows the authorities that `SSL_CERT_FILE` or `SSL_CERT_DIR` name, else the usual ones; they
    are read again when the file is another one. That of another URL knows none, so it lets nobody in by TLS.
    Raises `AuthoritiesUnreadable`.
    """
    import ssl  # late, as the clients are

    if not url.lower().startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file, directory = os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", "")
    try:
        return _context(file, os.stat(file).st_mtime_ns if file else 0, directory)
    except OSError as error:  # `ssl.SSLError` too
        name, value = ("SSL_CERT_FILE", file) if file else ("SSL_CERT_DIR", directory)
        raise AuthoritiesUnreadable(
            f"{name} is {value!r}, where no certificates can be read ({error}): name a file of them, or unset it"
        ) from error


@cache
def _context(file: str, changed_at: int, directory: str) -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()
