"""Which proxy is on the way to an address: one answer for the agent's socket, and for whoever looks for what is wrong.

As the variables say: `WSS_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` for TLS, `WS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` else;
`NO_PROXY` wins.
"""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from kici.agent.errors import SettingsInvalid


def on_the_way_to(url: str) -> str | None:
    """The proxy's address, perhaps with user and password; None = there is none. Raises `SettingsInvalid`."""
    parts = urlsplit(url)
    secure = parts.scheme in ("wss", "https")
    if urllib.request.proxy_bypass(f"{parts.hostname}:{parts.port or (443 if secure else 80)}"):
        return None
    known = urllib.request.getproxies()
    for name in ("wss", "https", "all") if secure else ("ws", "http", "all"):
        if proxy := known.get(name):
            if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
                raise SettingsInvalid(
                    f"{name.upper()}_PROXY is not the address of an http:// proxy, which is the only kind that the"
                    " agent can use: change it, or put the orchestrator's host into NO_PROXY"
                )
            return proxy
    return None
