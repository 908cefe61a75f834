"""Which forge a source's provider means."""

from __future__ import annotations

from kici.forges.contract import Forge, ForgeError
from kici.forges.generic.forge import GenericForge
from kici.forges.github.forge import GithubForge
from kici.forges.local.forge import LocalForge

INTERNAL = "internal"
"""Provider of a repository that the orchestrator itself keeps."""

_FORGES: dict[str, Forge] = {"github": GithubForge(), "generic": GenericForge(), INTERNAL: LocalForge()}


def forge_of(provider: str) -> Forge:
    try:
        return _FORGES[provider]
    except KeyError:
        raise ForgeError(f"there is no forge {provider!r}: use one of {', '.join(sorted(_FORGES))}") from None
