"""Which sandbox an agent uses: what its operator wants, and what the machine can do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from kici.agent.sandbox.contract import Sandbox, SandboxUnavailable
from kici.agent.sandbox.probe import probe
from kici.agent.sandbox.seccomp import Profile
from kici.engine.labels import of_sandbox

if TYPE_CHECKING:
    from kici.agent.sandbox.bubblewrap import Bubblewrap
    from kici.agent.sandbox.podman import Options


Mode = Literal["auto", "true", "false", "bubblewrap", "container", "none"]
"""`true` is `bubblewrap`, `false` is `none`."""


class Choice(Struct, frozen=True):
    sandbox: Sandbox
    why: str
    """For the log: `bubblewrap works here`, or why it is not used."""
    fallback: str = ""
    """What jobs are not protected by although `auto` would, and why; empty if nothing is missing."""
    profile: Profile = "steps"
    image_builds: Sandbox | None = None
    """For jobs that ask to build images; None = they may not."""

    @property
    def labels(self) -> tuple[str, ...]:
        """That the agent gives itself."""
        return of_sandbox(self.sandbox.name, filtered=not self.fallback, image_builds=self.image_builds is not None)


def choose(
    mode: str, profile: Profile = "steps", container: Options | None = None, allow: Profile | None = None
) -> Choice:
    """`auto` takes bubblewrap where it works, and tells what is missing; the others insist.

    `profile` is for all jobs, `allow` for those that ask for it.

    To know whether it works, a box is started once; this takes some milliseconds and blocks. Raises
    `SandboxUnavailable` with the reason for all but `auto`, and for a profile other than `steps`.
    """
    if mode not in get_args(Mode):
        raise SandboxUnavailable(f"KICI_SANDBOX={mode!r} is unknown: write {', '.join(get_args(Mode))}")
    if mode in ("false", "none", "container") and profile != "steps":
        raise SandboxUnavailable(f"KICI_SANDBOX_PROFILE={profile} needs KICI_SANDBOX=bubblewrap, but it is {mode}")
    if mode in ("false", "none", "container") and allow == "image-build":
        raise SandboxUnavailable(f"KICI_SANDBOX_ALLOW={allow} needs KICI_SANDBOX=bubblewrap, but it is {mode}")
    if mode in ("false", "none"):
        from kici.agent.sandbox.none import NoSandbox

        return Choice(NoSandbox(), f"switched off by KICI_SANDBOX={mode}: steps run as the agent's own user")
    if mode == "container":
        return Choice(_container(container), "KICI_SANDBOX=container")
    choice = _bubblewrap(mode, profile)
    if profile == "image-build":
        return replace(choice, image_builds=choice.sandbox)
    return replace(choice, image_builds=_image_builds()) if allow == "image-build" else choice


def _image_builds() -> Sandbox:
    from kici.agent.sandbox.bubblewrap import Bubblewrap

    try:
        return _works(lambda: Bubblewrap("image-build"))
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"KICI_SANDBOX_ALLOW=image-build, but {error}") from error


def _bubblewrap(mode: str, profile: Profile) -> Choice:
    from kici.agent.sandbox.bubblewrap import Bubblewrap

    try:
        return Choice(_works(lambda: Bubblewrap(profile)), "bubblewrap works here", profile=profile)
    except SandboxUnavailable as error:
        if profile != "steps":
            raise SandboxUnavailable(f"KICI_SANDBOX_PROFILE={profile}, but {error}") from error
        if mode != "auto":
            raise SandboxUnavailable(f"KICI_SANDBOX={mode}, but {error}") from error
        problem = str(error)
    try:
        unfiltered = _works(lambda: Bubblewrap(profile, filtered=False))
    except SandboxUnavailable:
        from kici.agent.sandbox.none import NoSandbox

        missing = f"no sandbox, steps run as the agent's own user: {problem}"
        return Choice(NoSandbox(), missing, missing)
    missing = f"no seccomp filter: {problem}"
    return Choice(unfiltered, f"bubblewrap works here, but {missing}", missing)


def _container(wanted: Options | None) -> Sandbox:
    from kici.agent.sandbox.container import ContainerSandbox  # for those who want it only

    if wanted is None:
        raise SandboxUnavailable("KICI_SANDBOX=container is for agents: this program does not know which image")
    return ContainerSandbox(wanted)


def _works(make: Callable[[], Bubblewrap]) -> Bubblewrap:
    sandbox = make()
    code, words = probe(sandbox, ["/bin/sh", "-c", "exit 0"], timeout_s=20)
    if code:
        raise SandboxUnavailable(f"a probe in bubblewrap ended with {code}: {words or 'it says nothing'}")
    if os.geteuid() == 0 and words:
        raise SandboxUnavailable(f"a probe in bubblewrap complained: {words}")
    return sandbox
