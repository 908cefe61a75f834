"""One file of certificate authorities for all that talks TLS: the agent, git, uv, and the common tools of jobs."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from kici.agent.errors import SettingsInvalid

if TYPE_CHECKING:
    from kici.agent.workspace import Workspace

FILE = "ca-bundle.pem"
"""In the job's own directory: that every sandbox shows, and the slot's user can read it."""
MAX_BYTES = 4 * 1024 * 1024
VARIABLES = (
    "SSL_CERT_FILE",
    "GIT_SSL_CAINFO",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
)


def check(path: Path) -> None:
    """Raises `SettingsInvalid` for a file that is no bundle."""
    import ssl  # ten milliseconds, which `kici run local` does without

    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingsInvalid(f"KICI_CA_BUNDLE names {path}, which has more than {MAX_BYTES // 1_048_576} MiB")
        found = ssl.create_default_context(cafile=str(path)).get_ca_certs()
    except (OSError, ssl.SSLError) as error:
        raise SettingsInvalid(f"KICI_CA_BUNDLE names {path}, which cannot be read: {error}") from None
    if not found:
        raise SettingsInvalid(f"KICI_CA_BUNDLE names {path}, which holds no certificate of an authority")


def use(bundle: Path, environ: MutableMapping[str, str]) -> None:
    """For the agent itself and what it starts: its own connections and uv find it by this name."""
    environ["SSL_CERT_FILE"] = str(bundle)


def hand_over(bundle: Path, space: Workspace) -> Path:
    """A copy that the job may read, wherever the operator keeps the file. Only before user code runs there."""
    copy = space.root / FILE
    copy.write_bytes(bundle.read_bytes())
    copy.chmod(0o644)
    return copy


def variables(inside: str) -> Mapping[str, str]:
    """What tells common tools of the bundle at this path."""
    return dict.fromkeys(VARIABLES, inside)
